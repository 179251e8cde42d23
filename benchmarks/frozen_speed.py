"""Inference time of frozen networks relative to unfrozen ones, and of p4-CNN relative to plain conv2d.

    python -m benchmarks.frozen_speed [--rounds 30] [--batch 32] [--csv FILE] [NAME...]

Ratios of interleaved rounds (coattend/_timing.py). A frozen network may take at most as long as the unfrozen
one, the frozen p4-CNN at most 1.03 of a network of plain convolutions with 40 channels.
"""

from __future__ import annotations

from pathlib import Path

import torch
import tyro
from rich.console import Console

from coattend._timing import Measurement, compared, inference, interleaved
from coattend.bench import plain_network, write_csv
from coattend.export import freeze
from coattend.models import create_model, list_models, model_entry
from coattend.report.console import measurement_table

PLAIN = "frozen p4-CNN / plain conv2d network of 40 channels"


def against_plain(batch: int, rounds: int) -> Measurement:
    """Measure p4-CNN relative to its convolutions alone."""
    images = torch.randn(batch, 1, 28, 28)
    steps = {
        "frozen": inference(freeze(create_model("p4cnn").eval()), images),
        "plain": inference(plain_network(), images),
    }
    seconds = interleaved(steps, rounds)
    return compared("inference", f"{PLAIN}, batch {batch}", seconds["frozen"], seconds["plain"], limit=1.03)


def against_unfrozen(name: str, batch: int, rounds: int) -> Measurement:
    """Measure one network before and after freezing."""
    network = create_model(name).eval()
    size = model_entry(name).image_size
    images = torch.randn(batch, network.in_channels, size, size)
    seconds = interleaved({"frozen": inference(freeze(network), images), "own": inference(network, images)}, rounds)
    return compared("frozen / unfrozen", f"{name}, batch {batch}", seconds["frozen"], seconds["own"], limit=1.0)


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    rounds: int = 30,
    batch: int = 32,
    threads: int = 2,
    csv: Path | None = None,
) -> None:
    """Measure and print.

    Args:
        names: Networks; by default all.
        rounds: Interleaved rounds; the median counts.
        batch: Images per batch.
        threads: Threads of torch.
        csv: Write the figures to this file.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    console = Console()
    measurements = [against_plain(batch, rounds)]
    for name in names or list_models():
        measurements.append(against_unfrozen(name, batch, rounds))
        console.print(f"{measurements[-1].name}: {measurements[-1].ratio:.3f}", style="dim")
    console.print(measurement_table(measurements))
    if csv is not None:
        write_csv(measurements, csv)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
