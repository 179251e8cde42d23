"""Share of the training time outside of forward, backward and optimizer step.

    python -m benchmarks.loop_overhead [--images 12000]

Trains p4-CNN for one epoch of the house recipe with clocks around forward, backward and optimizer step, and prints
the share of the epoch's training time that is spent outside of them: data, augmentation, metrics, checks, logging.
The evaluation after the epoch is not included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import tyro
from lightning_fabric import Fabric

from coattend.models import EquivariantNetwork
from coattend.train import RunFolder, get_recipe, train

MODEL = "p4cnn"


class Clock:
    """Adds up the time spent in the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, timed while gradients are enabled."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if torch.is_grad_enabled():
                    self.seconds += time.perf_counter() - start

        return timed


def main(images: int = 12_000) -> None:
    """Print the share.

    Args:
        images: Training images of the epoch.
    """
    recipe = replace(
        get_recipe("house", MODEL),
        train_on="train+valid",
        train_images=images,
        test_images=100,
        epochs=1,
        equivariance_every=0,
    )
    clock = Clock()
    with (
        tempfile.TemporaryDirectory() as root,
        patch.object(EquivariantNetwork, "forward", clock.around(EquivariantNetwork.forward)),
        patch.object(Fabric, "backward", clock.around(Fabric.backward)),
        patch.object(torch.optim.AdamW, "step", clock.around(torch.optim.AdamW.step)),
    ):
        train(MODEL, recipe, 0, Path(root))
        (epoch,) = RunFolder.of(Path(root), MODEL, recipe, 0).history()
    assert epoch.images_per_second is not None
    seconds = images / epoch.images_per_second
    print(f"{images:,} images: {seconds:.2f} s, of which {clock.seconds:.2f} s in forward, backward and step")
    print(f"outside: {1 - clock.seconds / seconds:.1%}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
