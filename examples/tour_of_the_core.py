"""The core at work: lift an image onto a group, attend to its poses, and prove that equivariance is kept.

python examples/tour_of_the_core.py
"""

from __future__ import annotations

from typing import get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import coattend as ca
from coattend.nn.co_attention import Structure


def letter_f(size: int = 28) -> Tensor:
    """An image without any symmetry, so that every pose of it differs."""
    image = torch.zeros(1, 1, size, size)
    image[..., 4:24, 8:11] = 1
    image[..., 4:7, 8:20] = 1
    image[..., 12:15, 8:16] = 1
    return image


def small_network(group: str, structure: Structure) -> nn.Sequential:
    """Lift, attend, convolve, attend, pool over the group."""
    return nn.Sequential(
        ca.nn.LiftingConv2d(1, 8, 5, group),
        ca.nn.CoAttention(8, group, structure, init_std=1.0),
        ca.nn.GroupBatchNorm2d(8),
        nn.ReLU(),
        ca.nn.GroupConv2d(8, 8, 3, group),
        ca.nn.CoAttention(8, group, structure, init_std=1.0),
        ca.nn.GroupPool(group),
    )


def wandering_mask(console: Console, network: nn.Sequential, image: Tensor, group: ca.FiniteGroup) -> None:
    """Show how a mask wanders along the group axis as the image moves, at the place where its poses differ most."""
    table = Table(title="\nMask of one channel over the eight poses, at one place of the image, as the image moves")
    table.add_column("image")
    for h in group.elements:
        table.add_column(group.describe(h), justify="right")
    mask = ca.attention_masks(network, image)["1"][0, 0]
    smallest_gap = mask.sort(dim=0).values.diff(dim=0).amin(0)
    place = nn.functional.one_hot(smallest_gap.argmax(), smallest_gap.numel()).view_as(smallest_gap)
    for g in group.elements:
        moved = ca.attention_masks(network, ca.groups.transform_image(image, group, g))["1"][0, 0]
        here = ca.groups.transform_image(place, group, g).bool()
        table.add_row(group.describe(g), *(f"{v:.2f}" for v in moved[:, here].flatten()))
    console.print(table)


def errors_of_structures(console: Console, image: Tensor, group: ca.FiniteGroup) -> None:
    """Compare the group's own attention matrix with the two that break the symmetry."""
    table = Table(title="\nRelative equivariance error of the whole network, float64")
    table.add_column("element")
    errors = {}
    for structure in get_args(Structure):
        table.add_column(f'structure="{structure}"', justify="right")
        torch.manual_seed(0)
        errors[structure] = ca.equivariance_error(small_network(group.name, structure), image, group)
    for g in group.elements:
        table.add_row(group.describe(g), *(f"{column[g]:.1e}" for column in errors.values()))
    console.print(table)


def main() -> None:
    """Print the tour."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    console = Console(width=140)
    group, image = ca.get_group("p4m"), letter_f()

    network = small_network("p4m", "group")
    console.print(f"An image {tuple(image.shape)} lifted onto {group.name}: {tuple(network[0](image).shape)}")
    wandering_mask(console, network, image, group)
    errors_of_structures(console, image, group)

    console.print("\nWhat diagnose says of the matrix as printed in the paper:")
    console.print(str(ca.diagnose(small_network("p4m", "paper"), image, group)), highlight=False)


if __name__ == "__main__":
    main()
