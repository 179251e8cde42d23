"""How long a training will take, measured on a copy of the network before it starts."""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext

import torch

from coattend.models import EquivariantNetwork
from coattend.train.recipe import Recipe

STEPS = 2  # of which the second is measured: the first one compiles kernels and allocates memory
ENOUGH = 20.0  # seconds; a step that takes longer is not repeated


def estimated_seconds(
    network: EquivariantNetwork, image_shape: tuple[int, int, int], recipe: Recipe, images: int
) -> float:
    """Return the seconds that the forward and backward passes of all steps will take, without reading and testing."""
    batch = min(recipe.batch, images)
    measured = copy.deepcopy(network).train()
    parameter = next(measured.parameters())
    pixels = torch.zeros(batch, *image_shape, device=parameter.device, dtype=parameter.dtype)
    seconds = 0.0
    narrow = recipe.precision == "bf16-mixed"
    with torch.random.fork_rng(devices=[]):
        for _ in range(STEPS):
            started = time.perf_counter()
            with torch.autocast(parameter.device.type, torch.bfloat16) if narrow else nullcontext():
                outputs = measured(pixels)
            outputs.float().square().mean().backward()
            seconds = time.perf_counter() - started
            if seconds > ENOUGH:
                break
    return seconds * images / batch * recipe.epochs


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(40), duration(2000), duration(90000)
    ('40 s', '33 min', '25.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
