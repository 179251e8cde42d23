"""Graphs of co-attention for ONNX Runtime: which standard operations are the fastest.

    python -m benchmarks.onnx_attention [--batches 1 32] [--rounds 20] [--threads 2]

Three layers of convolution, attention, bias and ReLU in a row, exported and run by ONNX Runtime, relative to the graph
that ``coattend export`` writes (the first of each list). Ratios of interleaved rounds; all graphs of a list compute the
same numbers, which is verified.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from torch import Tensor, nn

from coattend._timing import compared, interleaved
from coattend.export import freeze
from coattend.export.fused import FrozenSliceConv2d, slice_index
from coattend.nn import CoAttention, GroupConv2d, SliceCoAttentiveConv2d

Logits = Callable[
    [Tensor, Tensor], Tensor
]  # planes, matrices (channels, group, group) -> (batch, channels, group, ...)
Mask = Callable[[Tensor], Tensor]
BLOCK = 16  # channels of a block of ONNX Runtime's own memory format


def grouped(planes: Tensor, matrices: Tensor) -> Tensor:
    """Compute logits by a 1x1 convolution with one channel group for each matrix."""
    channels, order, _ = matrices.shape
    return F.conv2d(planes, matrices.mT.reshape(-1, order, 1, 1), groups=channels).unflatten(1, (-1, order))


def dense(planes: Tensor, matrices: Tensor) -> Tensor:
    """Compute logits by a 1x1 convolution with zeros between channels."""
    filters = torch.block_diag(*matrices.mT)[:, :, None, None]
    return F.conv2d(planes, filters).unflatten(1, (-1, matrices.shape[-1]))


def blocks(planes: Tensor, matrices: Tensor) -> Tensor:
    """Compute logits by a 1x1 convolution with channel groups that are blocks of ONNX Runtime's memory format."""
    filters = torch.block_diag(*matrices.mT).unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    diagonal = torch.stack([filters[i, :, i] for i in range(len(filters))]).flatten(0, 1)
    y = F.conv2d(planes, diagonal[:, :, None, None], groups=len(filters))
    return y.unflatten(1, (-1, matrices.shape[-1]))


def matmul(planes: Tensor, matrices: Tensor) -> Tensor:
    """Compute logits by a product of matrices."""
    channels, order, _ = matrices.shape
    product = torch.matmul(matrices.mT, planes.unflatten(1, (channels, order)).flatten(3))
    return product.unflatten(3, planes.shape[-2:])


def by_maximum(logits: Tensor) -> Tensor:
    """Return exp(l - max l)."""
    return torch.exp(logits - logits.amax(2, keepdim=True))


def by_slices(logits: Tensor) -> Tensor:
    """Return exp(l - max l), the maximum being that of one tensor for each pose."""
    first, *others = logits.split(1, dim=2)
    for other in others:
        first = torch.maximum(first, other)
    return torch.exp(logits - first)


def by_division(logits: Tensor) -> Tensor:
    """Return exp(l) / max exp(l), which overflows for large logits."""
    powers = torch.exp(logits)
    return powers / powers.amax(2, keepdim=True)


def by_softmax(logits: Tensor) -> Tensor:
    """Return softmax(l) / max softmax(l), as the paper writes it."""
    shares = torch.softmax(logits, 2)
    return shares / shares.amax(2, keepdim=True)


class OutputLayer(nn.Module):
    """A convolution, attention, an offset and a ReLU."""

    def __init__(self, conv: nn.Conv2d, matrices: Tensor, logits: Logits, mask: Mask) -> None:
        super().__init__()
        self.conv, self.logits, self.mask = conv, logits, mask
        self.register_buffer("matrices", matrices / matrices.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return planes."""
        planes = self.conv(x)
        mask = self.mask(self.logits(planes, self.get_buffer("matrices"))).flatten(1, 2)
        return F.relu(mask * planes + 0.125)


class SliceLayer(nn.Module):
    """A convolution of filter slices, attention to each of them, their sum, an offset and a ReLU."""

    def __init__(self, unit: FrozenSliceConv2d, total: str) -> None:
        super().__init__()
        self.unit, self.total = unit, total
        order, slices = unit.matrices.shape[-1], unit.slices
        self.channels, self.order, self.slices = len(unit.matrices) // slices, order, slices
        index = slice_index(unit.conv, unit.rows, order)
        self.register_buffer("index", index.flatten())
        matrices, selected = unit.matrices / order, torch.eye(order).repeat(1, slices)
        if total == "transpose":  # poses in the order of the input poses that they read
            source = index[0] // (self.channels * slices)
            places = source.repeat(self.channels, 1)
            matrices = torch.stack([m[p.argsort()][:, p.argsort()] for m, p in zip(matrices, places, strict=True)])
            selected = F.one_hot(source, order).permute(1, 0, 2).flatten(1).to(matrices)
        self.register_buffer("matrices", matrices)
        self.register_buffer("selected", selected.repeat(self.channels, 1)[:, :, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return planes."""
        by_pose = x.unflatten(1, (self.channels, self.order)).transpose(1, 2).flatten(1, 2)
        planes = self.unit.conv(by_pose)
        if self.total == "transpose":
            planes = planes.unflatten(1, (self.order, -1)).transpose(1, 2).flatten(1, 2)
        else:
            planes = planes.index_select(1, self.get_buffer("index"))
        attended = by_maximum(grouped(planes, self.get_buffer("matrices"))).flatten(1, 2) * planes
        if self.total == "sum":
            summed = attended.unflatten(1, (-1, self.slices, self.order)).sum(2).flatten(1, 2)
        else:
            summed = F.conv2d(attended, self.get_buffer("selected"), groups=self.channels)
        return F.relu(summed + 0.125)


def output_graphs(channels: int, group: str) -> dict[str, nn.Module]:
    """Return the candidates of attention after convolutions."""
    frozen = freeze(nn.Sequential(GroupConv2d(channels, channels, 3, group, padding=1, bias=False)).eval())
    conv, matrices = frozen.get_submodule("0"), CoAttention(channels, group).matrix().detach()
    assert isinstance(conv, nn.Conv2d)
    candidates: dict[str, tuple[Logits, Mask]] = {
        "grouped 1x1 convolution, exp(l - ReduceMax)": (grouped, by_maximum),
        "1x1 convolution with zeros": (dense, by_maximum),
        "MatMul": (matmul, by_maximum),
        "maximum of n tensors": (grouped, by_slices),
        "exp(l) / ReduceMax (overflows)": (grouped, by_division),
        "Softmax / ReduceMax": (grouped, by_softmax),
    }
    if conv.out_channels % BLOCK == 0:
        candidates["1x1 convolution in blocks of 16"] = (blocks, by_maximum)
    return {name: _repeated(OutputLayer(conv, matrices, *parts)) for name, parts in candidates.items()}


def slice_graphs(channels: int, group: str) -> dict[str, nn.Module]:
    """Return the candidates of attention inside of convolutions."""
    layer = SliceCoAttentiveConv2d(channels, channels, 3, group, padding=1, bias=False)
    unit = freeze(nn.Sequential(layer).eval()).get_submodule("0")
    assert isinstance(unit, FrozenSliceConv2d)
    candidates = {
        "slices: Gather, ReduceSum": "sum",
        "slices: Gather, sum by a grouped 1x1 convolution": "conv",
        "slices: Transpose, sum by a grouped 1x1 convolution": "transpose",
    }
    return {name: _repeated(SliceLayer(unit, total)) for name, total in candidates.items()}


def _repeated(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, layer, layer).eval()


def session(network: nn.Module, images: Tensor, threads: int) -> Any:
    """Export a network for batches of any size, and return it in ONNX Runtime."""
    import onnxruntime  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = ({0: torch.export.Dim("batch")},)
        program = torch.onnx.export(network, (images,), dynamo=True, dynamic_shapes=batch, verbose=False)
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    content = program.model_proto.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def step(run: Any, images: Tensor) -> Callable[[], Any]:
    """Return a step of a session."""
    inputs = {run.get_inputs()[0].name: images.numpy()}
    return lambda: run.run(None, inputs)[0]


def main(batches: tuple[int, ...] = (1, 32), rounds: int = 20, threads: int = 2) -> None:
    """Measure and print a Markdown table.

    Args:
        batches: Images per batch.
        rounds: Interleaved rounds; the median counts.
        threads: Threads of ONNX Runtime.
    """
    torch.manual_seed(0)
    console = Console()
    cases = (
        ("C4, 10 channels, 24x24", output_graphs(10, "p4"), (40, 24)),
        ("D4, 16 channels, 16x16", output_graphs(16, "p4m"), (128, 16)),
        ("C4, 10 channels, 24x24", slice_graphs(10, "p4"), (40, 24)),
        ("C4, 16 channels, 16x16", slice_graphs(16, "p4"), (64, 16)),
    )
    for title, graphs, (planes, size) in cases:
        rows: dict[str, list[str]] = {name: [] for name in graphs}
        example = torch.randn(2, planes, size, size)
        sessions = {name: session(network, example, threads) for name, network in graphs.items()}
        for batch in batches:
            images = torch.randn(batch, planes, size, size)
            steps = {name: step(run, images) for name, run in sessions.items()}
            results = [run() for run in steps.values()]
            assert all(np.allclose(result, results[0], atol=1e-4) for result in results)
            times = interleaved(steps, rounds)
            first = next(iter(times.values()))
            for name in graphs:
                rows[name].append(f"{compared('', name, times[name], first).ratio:.2f}")
        console.print(f"| {title} | {' | '.join(f'batch {b}' for b in batches)} |\n|{'---|' * (len(batches) + 1)}")
        for name, ratios in rows.items():
            console.print(f"| {name} | {' | '.join(ratios)} |", soft_wrap=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
