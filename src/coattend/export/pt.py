"""Files for PyTorch: .pt2, which torch.export.load reads, and .pt, a frozen module for torch.load."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from torch import nn

from coattend._files import check_target, write_whole
from coattend.export.archive import archive_digest, certified_archive, check_archive
from coattend.export.certificate import Certificate
from coattend.export.formats import register_format
from coattend.export.freeze import frozen_with_outputs
from coattend.export.graph import Builder
from coattend.export.input import Input, describe_input, input_of
from coattend.export.measurement import Network, certify, without_gradients


@register_format(".pt2", "torch.export", options=("size",), check=check_archive)
def export_pt2(
    network: nn.Module, path: str | Path, *, size: int | None = None, overwrite: bool = False
) -> Certificate:
    """Write the frozen network for ``torch.export.load``.

    The extra files ``metadata.json`` and ``certificate.json`` say what it takes and what was measured. ``size`` is the
    height and width of the images, by default those that the network was trained on, else those of its dataset.
    """
    path = Path(path)
    check_target(path, overwrite)
    images = input_of(network, size)
    frozen = frozen_with_outputs(network, Builder(eager=False, image_shape=images.shape))
    batch = {0: torch.export.Dim("batch")}
    example = torch.zeros(2, *images.shape, dtype=torch.float32)
    program = torch.export.export(frozen, (example,), dynamic_shapes=(batch,))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of this machine
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"metadata.json": json.dumps(describe_input(network, images))})
    return _write_certified(network, without_gradients(program.module()), images, content.getvalue(), path)


@register_format(".pt", "a frozen network for torch.load", options=("size",), check=check_archive)
def export_frozen(
    network: nn.Module, path: str | Path, *, size: int | None = None, overwrite: bool = False
) -> Certificate:
    """Write the frozen network for ``torch.load(path, weights_only=False)``.

    Its attribute ``metadata`` says what it takes; the certificate is a record of the file, ``extra/certificate.json``.
    """
    path = Path(path)
    check_target(path, overwrite)
    images = input_of(network, size)
    frozen = frozen_with_outputs(network, Builder(image_shape=images.shape))
    frozen.metadata = describe_input(network, images)  # type: ignore[assignment]
    content = io.BytesIO()
    torch.save(frozen, content)
    return _write_certified(network, without_gradients(frozen), images, content.getvalue(), path)


def _write_certified(network: nn.Module, exported: Network, images: Input, content: bytes, path: Path) -> Certificate:
    certificate = certify(network, exported, images, archive_digest(content))
    write_whole(path, certified_archive(content, certificate))
    return certificate
