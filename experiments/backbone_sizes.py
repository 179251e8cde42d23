"""Print parameters and multiply-adds of the backbones over several groups, as rows of a Markdown table.

    python -m experiments.backbone_sizes

For each backbone: the plain network over the trivial group, and the widths with which the network over a group has as
many parameters, or costs as much. No weights are drawn.
"""

from __future__ import annotations

import tyro

import coattend as ca
from coattend.models import EquivariantNetwork
from coattend.models.registry import matched_widths, network_skeleton
from coattend.nn.observe import multiply_adds

NAMES = ("coat_resnet18", "coat_resnet34", "coat_resnet50", "coat_convnext_tiny", "coat_convnext_small")


def row(name: str, group: str, match: str, network: EquivariantNetwork, widths: tuple[int, ...]) -> str:
    """Return a row of the table."""
    size = ca.model_entry(name).image_size
    parameters = sum(p.numel() for p in network.parameters()) / 1e6
    cost = sum(multiply_adds(network, (network.in_channels, size, size)).values()) / 1e9
    return f"| `{name}` | {group} | {match} | {'-'.join(map(str, widths))} | {parameters:.2f} | {cost:.2f} |"


def main(names: tuple[str, ...] = NAMES, groups: tuple[str, ...] = ("p4", "p4m", "C8")) -> None:
    """Print the table.

    Args:
        names: Networks.
        groups: Groups.
    """
    print("| network | group | `match` | widths | parameters (M) | multiply-adds (G) |\n|---|---|---|---|---|---|")
    for name in names:
        entry = ca.model_entry(name)
        plain = entry.builder.usual_widths({})  # type: ignore[attr-defined]
        print(row(name, "z2", "", network_skeleton(entry, {"group": "z2", "width": plain}), plain), flush=True)
        for group in groups:
            for match in ("params", "cost"):
                widths = matched_widths(entry, {**entry.options, "group": group}, match)
                network = network_skeleton(entry, {"group": group, "width": widths})
                print(row(name, group, match, network, widths), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
