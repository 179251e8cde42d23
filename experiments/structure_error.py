"""Invariance error of a-p4m-All-CNN with the attention of Eq. 11 as printed.

    python -m experiments.structure_error

Prints the table of docs/models.md: the error of the logits by element, ``structure="paper"`` against ``"group"``, with
pooling instead of strides so that everything else is exact. Full width, random weights, batch-norm statistics estimated
from random images, float64; attention vectors as initialised, and larger ones, as after training.
"""

from __future__ import annotations

import torch

import coattend as ca
from coattend.nn import CoAttention
from coattend.nn.observe import estimate_norm_statistics


def errors(structure: str, spread: float | None) -> dict[int, float]:
    """Return the invariance error of every element; ``spread`` is the standard deviation of new attention vectors."""
    torch.manual_seed(0)
    model = ca.create_model("a_p4m_allcnn", structure=structure, downsample="pool")
    if spread is not None:
        for layer in model.modules():
            if isinstance(layer, CoAttention):
                layer.reset_parameters(spread)
    images = torch.randn(2, 3, 32, 32)
    estimate_norm_statistics(model, [images])
    return ca.equivariance_error(model, images[:1], "p4m")


def table() -> str:
    """Return the errors as a Markdown table."""
    columns = [errors(structure, spread) for spread in (None, 1.0) for structure in ("group", "paper")]
    lines = [
        "| element | group, as initialised | paper, as initialised | group, vectors N(0, 1) | paper, vectors N(0, 1) |",
        "|---|---|---|---|---|",
    ]
    group = ca.get_group("p4m")
    for g in group.elements:
        lines.append(f"| {group.describe(g)} | {' | '.join(f'{column[g]:.1e}' for column in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    print(table())
