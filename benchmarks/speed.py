"""All lines of ``coattend bench``, the memory of a transformer block, and how the cost of attention grows.

    python -m benchmarks.speed [--rounds 30] [--no-bf16] [--no-compiled]
        [--csv results/speed.csv] [--plot-to docs/assets/speed.png] [--page docs/speed.md]

Ratios measured in one run on two threads, each printed as soon as it is known. The page needs the CSV file;
``python -m benchmarks.speed_page`` writes it again from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch
import tyro

from benchmarks.block_memory import Setting as Block
from benchmarks.block_memory import measured_peaks
from benchmarks.speed_page import write_page
from coattend._files import check_target
from coattend._terminal import console
from coattend._timing import Measurement, Step, compared, interleaved
from coattend.bench import Setting, measured_lines, prepare_process, write_csv
from coattend.functional.layout import channels_last, has_faster_channels_last
from coattend.groups import cyclic
from coattend.nn import CoAttention, GroupConv2d
from coattend.report.console import measurement_table

ORDERS, FACTORS = (4, 8, 16, 32), (1, 2, 4)


def growth(batch: int = 64, channels: int = 10, size: int = 24, rounds: int = 20) -> Iterator[Measurement]:
    """Measure forward and backward of one attention relative to the smallest, and to the 3x3 convolution before it."""
    smallest = _attention(batch, channels, 4, size)
    cases = {
        **{("order", order): (batch, channels, order, size) for order in ORDERS},
        **{("channels", f * channels): (batch, f * channels, 4, size) for f in FACTORS},
        **{("pixels", f * f * size * size): (batch, channels, 4, f * size) for f in FACTORS[:2]},
        **{("batch", f * batch): (f * batch, channels, 4, size) for f in FACTORS},
    }
    for (axis, value), case in cases.items():
        seconds = interleaved({"one": smallest, "grown": _attention(*case)}, rounds)
        yield compared(f"growth with {axis}", str(value), seconds["grown"], seconds["one"])
    for order in ORDERS:
        case = (batch, channels, order, size)
        seconds = interleaved({"attention": _attention(*case), "convolution": _convolution(*case)}, rounds)
        yield compared("attention / convolution, by order", str(order), seconds["attention"], seconds["convolution"])


def plot(measurements: Sequence[Measurement], path: Path) -> None:
    """Draw the ratios with a limit as fractions of it, and the growth on doubly logarithmic axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    limited = [m for m in measurements if m.limit is not None][::-1]
    figure = Figure(figsize=(12, max(4.5, 0.25 * len(limited))), layout="constrained")
    bars, curves = figure.subplots(1, 2, width_ratios=(3, 2))
    labels = [f"{m.kind}: {m.name}" for m in limited]
    colours = ["#ee6677" if m.is_over else "#4477aa" for m in limited]
    bars.barh(labels, [m.ratio / m.limit for m in limited if m.limit], color=colours)
    bars.tick_params(axis="y", labelsize=7)
    bars.axvline(1.0, color="black", linewidth=1)
    bars.set_xlabel("measured ratio / largest allowed")
    for axis in ("order", "channels", "pixels", "batch"):
        grown = [m for m in measurements if m.kind == f"growth with {axis}"]
        if grown:
            start = float(grown[0].name)
            curves.loglog([float(m.name) / start for m in grown], [m.ratio for m in grown], "o-", label=axis)
    curves.loglog([1, 8], [1, 8], ":", color="black", label="linear")
    for ticks in (curves.xaxis, curves.yaxis):
        ticks.set_major_locator(FixedLocator([1, 2, 4, 8, 16]))
        ticks.set_major_formatter(ScalarFormatter())
        ticks.set_minor_locator(NullLocator())
    curves.set_xlabel("times as many")
    curves.set_ylabel("times the cost of attention")
    curves.legend()
    figure.savefig(path, dpi=120)


def main(
    rounds: int = 30,
    bf16: bool = True,
    compiled: bool = True,
    csv: Path | None = None,
    plot_to: Path | None = None,
    page: Path | None = None,
) -> None:
    """Measure and print.

    Args:
        rounds: Interleaved rounds per line; the median counts.
        bf16: Also measure bfloat16.
        compiled: Also compile the networks, which takes minutes.
        csv: Write the figures to this file.
        plot_to: Draw them to this file.
        page: Write the tables of this page from the CSV file.
    """
    if page is not None and csv is None:
        raise ValueError("--page expects --csv FILE as well: the tables of the page are those of the file.")
    if page is not None and not page.is_file():
        raise ValueError(
            f"--page expects a page with the markers of docs/speed.md, got {page}, which is no file; pass that page, "
            "or leave --page out and use --csv."
        )
    for path in (csv, plot_to):
        if path is not None:
            check_target(path, overwrite=True)
    prepare_process()
    measurements = []
    lines = measured_lines(Setting(rounds=rounds, bf16=bf16, compiled=compiled))
    for measurement in chain(lines, measured_peaks(Block())):
        measurements.append(measurement)
        console().print(f"{measurement.kind}: {measurement.name} {measurement.ratio:.3f}", style="dim", soft_wrap=True)
    measurements += growth(rounds=rounds)
    console().print(measurement_table(measurements))
    if csv is not None:
        write_csv(measurements, csv)
    if plot_to is not None:
        plot(measurements, plot_to)
    if page is not None and csv is not None:
        write_page(csv, page)


def _attention(batch: int, channels: int, order: int, size: int) -> Step:
    layer = CoAttention(channels, cyclic(order))
    return _forward_backward(layer, torch.randn(batch, channels, order, size, size))


def _convolution(batch: int, channels: int, order: int, size: int) -> Step:
    layer = GroupConv2d(channels, channels, 3, cyclic(order), padding=1)
    return _forward_backward(layer, torch.randn(batch, channels, order, size, size))


def _forward_backward(layer: torch.nn.Module, x: torch.Tensor) -> Step:
    x = (channels_last(x) if has_faster_channels_last() else x).requires_grad_()  # as in networks
    gradient = torch.randn_like(x)
    leaves = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), leaves, gradient)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
