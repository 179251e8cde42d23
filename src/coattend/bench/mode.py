"""How a network runs: the memory format of its maps and the precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from coattend import _timing
from coattend._timing import Step
from coattend.functional.layout import Format, has_faster_channels_last, memory_format

FORMATS = {"planes": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Mode:
    """A memory format and a precision: float32, or bfloat16 by ``torch.autocast`` with weights in float32."""

    format: Literal["planes", "channels_last"]
    bf16: bool = False

    def __str__(self) -> str:
        return f"{self.format.replace('_', '-')} {'bf16' if self.bf16 else 'float32'}"

    def training_step(self, network: nn.Module, images: Tensor, labels: Tensor) -> Step:
        """Return a training step of a network in this mode."""
        self._convert(network)
        return self._in_format(_timing.training_step(network, self._converted(images), labels, self.bf16))

    def inference(self, network: nn.Module, images: Tensor) -> Step:
        """Return a forward pass of a network in this mode."""
        self._convert(network)
        return self._in_format(_timing.inference(network, self._converted(images), self.bf16))

    def saved_bytes(self, network: nn.Module, images: Tensor) -> int:
        """Return the bytes that forward saves for backward in this mode."""
        self._convert(network)
        with memory_format(self.format), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            return _timing.saved_bytes(network, self._converted(images))

    def _convert(self, network: nn.Module) -> None:
        """Convert plain convolutions, so that torch computes them in this format; layers of this library ask for it."""
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.data = self._converted(layer.weight.data)

    def _converted(self, x: Tensor) -> Tensor:
        # A copy: one channel is contiguous in both formats, and torch would take the other one from its strides.
        return x.clone(memory_format=FORMATS[self.format])

    def _in_format(self, step: Step) -> Step:
        def run() -> None:
            with memory_format(self.format):
                step()

        return run


def resolved(name: Format) -> Literal["planes", "channels_last"]:
    """Return the format that networks use on this machine if the name is "auto", else the one that is named."""
    if name == "auto":
        return "channels_last" if has_faster_channels_last() else "planes"
    return name
