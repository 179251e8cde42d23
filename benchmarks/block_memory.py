"""Peak memory of a transformer block on a group relative to a plain block with as many heads and channels.

    python -m benchmarks.block_memory

Both blocks have the same norms, projections and widths; each is run in a process of its own, whose largest resident
size is measured from before the block is built.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coattend._terminal import console
from coattend._timing import Measurement
from coattend.report.console import measurement_table

LIMIT = 1.2
NAME = "transformer block on D4 / plain block"
STEPS = {"training": "y = block(x); y.sum().backward()", "inference": "with torch.no_grad(): block(x)"}


@dataclass(frozen=True)
class Setting:
    """The map (batch, channels, group, size, size) and the heads per pose."""

    batch: int = 8
    channels: int = 16
    group: str = "D4"
    order: int = 8
    size: int = 64
    heads: int = 2


class PlainBlock(nn.Module):
    """A transformer block on tokens (batch, positions, width): pre-norm, attention, a pointwise network."""

    def __init__(self, width: int, heads: int, mlp: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp * width), nn.GELU(), nn.Linear(mlp * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def blocks(setting: Setting) -> dict[str, str]:
    """Return the source that builds each block and its input."""
    s, width = setting, setting.channels * setting.order
    return {
        "plain": (
            f"block = PlainBlock({width}, {s.heads * s.order}); "
            f"x = torch.randn({s.batch}, {s.size**2}, {width}, requires_grad=True)"
        ),
        "group": (
            f"block = ca.nn.GroupTransformerBlock({s.channels}, {s.group!r}, {s.heads}); "
            f"x = torch.randn({s.batch}, {s.size}, {s.size}, {s.channels}, {s.order}).permute(0, 3, 4, 1, 2)"
            ".requires_grad_()"
        ),
    }


def peak(build: str, step: str) -> int:
    """Return the growth of the largest resident size in bytes while a block is built and run once."""
    program = (
        "import pathlib, re, torch, coattend as ca\n"
        "from benchmarks.block_memory import PlainBlock\n"
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "torch.nn.functional.conv2d(torch.zeros(1, 8, 8, 8), torch.zeros(8, 8, 1, 1))\n"
        "ca.functional.build_kernels()\n"
        "before = peak()\n"
        f"{build}\n{step}\n"
        "print(1024 * (peak() - before))\n"
    )
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def measured_peaks(setting: Setting) -> Iterator[Measurement]:
    """Measure the peak of the block relative to the plain one, in training and in inference."""
    for kind, step in STEPS.items():
        sizes = {name: peak(build, step) for name, build in blocks(setting).items()}
        yield Measurement.exact(f"peak resident, {kind}", NAME, sizes["group"] / sizes["plain"], LIMIT)


if __name__ == "__main__":
    console().print(measurement_table(list(measured_peaks(Setting()))))
