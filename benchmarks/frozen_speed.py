"""Inference time of frozen networks and of their files relative to the unfrozen network.

    python -m benchmarks.frozen_speed [--batches 1 32] [--seconds 2] [--threads 2] [--csv FILE] [NAME...]

Columns: ``coattend.freeze``; the file ``.pt``, loaded by torch.load; ``.pt2``, by torch.export.load; ``.onnx``, by ONNX
Runtime with the same number of threads. Ratios of interleaved rounds (coattend/_timing.py); threads of ONNX Runtime do
not spin while they wait, since they would take the cores from torch. A frozen network may take at most 1.05 times as
long as the unfrozen one, the frozen p4-CNN at most 1.03 of a network of plain convolutions with 40 channels.
"""

from __future__ import annotations

import io
import time
from pathlib import Path

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from coattend._timing import Measurement, Step, compared, inference, interleaved
from coattend.bench import plain_network, write_csv
from coattend.export import freeze
from coattend.export.input import input_of
from coattend.export.onnx_model import onnx_model
from coattend.models import create_model, list_models, model_entry

PLAIN = "frozen p4-CNN / plain conv2d network of 40 channels"
FORMS = ("frozen", ".pt", ".pt2", ".onnx")
LIMIT = 1.05


def against_plain(batch: int, seconds: float) -> Measurement:
    """Measure p4-CNN relative to its convolutions alone, in the same memory format."""
    images = torch.randn(batch, 1, 28, 28)
    steps = {
        "frozen": inference(freeze(create_model("p4cnn").eval()), images),
        "plain": inference(plain_network().to(memory_format=torch.channels_last), images),  # type: ignore[call-overload]
    }
    times = interleaved(steps, rounds(steps, seconds), warm_up=1)
    return compared("inference", f"{PLAIN}, batch {batch}", times["frozen"], times["plain"], limit=1.03)


def against_unfrozen(name: str, batches: tuple[int, ...], seconds: float, threads: int) -> list[Measurement]:
    """Measure one network before and after freezing, and its files."""
    network = create_model(name).eval()
    size = model_entry(name).image_size
    frozen = freeze(network)
    networks = {"own": network, "frozen": frozen, ".pt": loaded(frozen), ".pt2": exported(frozen, network)}
    session = onnx_session(network, threads)
    measurements = []
    for batch in batches:
        images = torch.randn(batch, network.in_channels, size, size)
        steps = {form: inference(module, images) for form, module in networks.items()}
        steps[".onnx"] = onnx_step(session, images)
        times = interleaved(steps, rounds(steps, seconds), warm_up=1)
        for form in FORMS:
            limit = LIMIT if form == "frozen" else None
            measurements.append(compared(form, f"{name}, batch {batch}", times[form], times["own"], limit))
    return measurements


def rounds(steps: dict[str, Step], seconds: float) -> int:
    """Return how many rounds take so many seconds, at least 5."""
    for step in steps.values():
        step()
    start = time.perf_counter()
    for step in steps.values():
        step()
    return max(5, min(100, int(seconds / (time.perf_counter() - start))))


def loaded(frozen: nn.Module) -> nn.Module:
    """Return what ``torch.load`` makes of the file of a frozen network."""
    content = io.BytesIO()
    torch.save(frozen, content)
    content.seek(0)
    network: nn.Module = torch.load(content, weights_only=False)
    return network


def exported(frozen: nn.Module, network: nn.Module) -> nn.Module:
    """Return what ``torch.export.load`` makes of the file of a network."""
    images = input_of(network)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(frozen, (torch.zeros(2, *images.shape),), dynamic_shapes=(batch,))
    return _Evaluated(program.module())


class _Evaluated(nn.Module):
    """A module of torch.export, which has no ``eval``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.run = (module,)

    def forward(self, images: Tensor) -> Tensor:
        """Call the module."""
        logits: Tensor = self.run[0](images)
        return logits


def onnx_session(network: nn.Module, threads: int) -> object:
    """Return the ONNX file of a network in ONNX Runtime."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    content = onnx_model(network, input_of(network)).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def onnx_step(session: object, images: Tensor) -> Step:
    """Return a step that runs a session."""
    inputs = {"images": images.numpy()}
    return lambda: session.run(None, inputs)  # type: ignore[attr-defined]


def table_row(name: str, measurements: list[Measurement]) -> str:
    """Return a line of the Markdown table: the forms one after the other, each with all batches."""
    ratios = [f"{m.ratio:.2f}" for form in FORMS for m in measurements if m.kind == form]
    return f"| {name} | {' | '.join(ratios)} |"


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    batches: tuple[int, ...] = (1, 32),
    seconds: float = 2.0,
    threads: int = 2,
    csv: Path | None = None,
) -> None:
    """Measure and print a Markdown table.

    Args:
        names: Networks; by default all.
        batches: Images per batch.
        seconds: Time per network and batch; the median of the rounds counts.
        threads: Threads of torch and of ONNX Runtime.
        csv: Write the figures to this file.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    console = Console()
    columns = [f"{form}, {batch}" for form in FORMS for batch in batches]
    console.print(f"| network | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}", soft_wrap=True)
    measurements: list[Measurement] = []
    for name in names or list_models():
        measured = against_unfrozen(name, batches, seconds, threads)
        console.print(table_row(name, measured), soft_wrap=True)
        measurements += measured
    slower = [m for m in measurements if m.limit is not None and m.ratio > m.limit]
    plain = [against_plain(batch, seconds) for batch in batches]
    for m in plain:
        console.print(f"{m.name}: {m.ratio:.2f}")
    console.print(f"frozen networks slower than {LIMIT} times: {', '.join(m.name for m in slower) or 'none'}")
    if csv is not None:
        write_csv([*measurements, *plain], csv)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
