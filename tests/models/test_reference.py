"""Initial weights, logits and one training step of every network of Table 1, in float64, against recorded figures.

The figures of reference.json are those of version 0.1.0; a change of the code may speed networks up or move files, but
not move these. ``python -m tests.models.test_reference`` prints them for the code as it is.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import coattend as ca
from coattend.models.paper import TABLE_1

RECORDED = json.loads((Path(__file__).parent / "reference.json").read_text())


def figures(name: str) -> dict[str, object]:
    """Weights as a digest, since they are drawn and not computed; the rest as numbers."""
    torch.manual_seed(2020)
    entry = ca.model_entry(name)
    network = ca.create_model(name)
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in network.parameters())).hexdigest()
    images = torch.randn(2, entry.in_channels, entry.image_size, entry.image_size)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    logits = network.train()(images)
    F.cross_entropy(logits, torch.tensor([3, 7])).backward()
    optimizer.step()
    after = network.eval()(images)
    norms = torch.stack([p.detach().norm() for p in network.parameters()])
    return {
        "weights": weights,
        "logits": logits.flatten().tolist(),
        "logits_after_a_step": after.flatten().tolist(),
        "parameter_norm_after_a_step": norms.norm().item(),
    }


def test_every_network_has_recorded_figures() -> None:
    assert set(RECORDED) == set(TABLE_1)


@pytest.mark.parametrize("name", RECORDED)
def test_network_computes_what_it_did(name: str) -> None:
    now, recorded = figures(name), RECORDED[name]
    assert now.pop("weights") == recorded["weights"]
    for key, values in now.items():
        assert values == pytest.approx(recorded[key], rel=1e-8, abs=1e-8), key


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    print(json.dumps({name: figures(name) for name in TABLE_1}, indent=1))  # noqa: T201
