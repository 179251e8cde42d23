"""One network into one file: torch.export, a frozen module, or safetensors with a certificate."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from coattend.export.builder import Builder
from coattend.export.certificate import Certificate, Line, Run, certify, compared, digest_of
from coattend.export.freezing import freeze, frozen_with_outputs
from coattend.export.shapes import image_shape_of
from coattend.export.target import check_target
from coattend.models import load_model, read_model_file
from coattend.models.files import model_file_content, write_whole

CERTIFICATE = "certificate"
CERTIFICATE_FILE = "certificate.json"  # inside a .pt2


def export_pt2(
    network: nn.Module, path: str | Path, *, size: int | None = None, overwrite: bool = False
) -> Certificate:
    """Write the frozen network for ``torch.export.load``; the certificate is the extra file ``certificate.json``."""
    path = Path(path)
    check_target(path, overwrite)
    shape = image_shape_of(network, size)
    frozen = frozen_with_outputs(network, Builder(eager=False))
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(frozen, (torch.zeros(2, *shape, dtype=torch.float32),), dynamic_shapes=(batch,))
    certificate = certify(network, evaluated(program.module()), shape, tensor_digest(program.state_dict))
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={CERTIFICATE_FILE: certificate.to_json()})
    write_whole(path, content.getvalue())
    return certificate


def export_frozen(
    network: nn.Module, path: str | Path, *, size: int | None = None, overwrite: bool = False
) -> Certificate:
    """Write the frozen network for ``torch.load(path, weights_only=False)``; its ``certificate`` is an attribute."""
    path = Path(path)
    check_target(path, overwrite)
    shape = image_shape_of(network, size)
    frozen = freeze(network)
    certificate = certify(network, evaluated(frozen), shape, tensor_digest(frozen.state_dict()))
    frozen.certificate = certificate.to_json()  # type: ignore[assignment]
    content = io.BytesIO()
    torch.save(frozen, content)
    write_whole(path, content.getvalue())
    return certificate


def export_safetensors(source: str | Path, path: str | Path, *, overwrite: bool = False) -> Certificate:
    """Copy a file written by save_model or training, with a certificate in its header; load_model reads both."""
    path = Path(path)
    check_target(path, overwrite)
    metadata, _, extra = read_model_file(source)
    network = load_model(source).float().eval()
    digest = tensor_digest({**network.state_dict(), **extra})
    certificate = certify(network, evaluated(network), image_shape_of(network, None), digest)
    content = model_file_content(network, {**metadata, CERTIFICATE: certificate.to_json()}, extra)
    write_whole(path, content)
    return certificate


def check_safetensors(path: str | Path) -> tuple[Certificate, list[Line]] | None:
    """Recompute the certificate in the header of a model file; None if it has none."""
    metadata, weights, extra = read_model_file(path)
    if CERTIFICATE not in metadata:
        return None
    certificate = Certificate.from_json(metadata[CERTIFICATE], str(path))
    return certificate, compared(certificate, evaluated(load_model(path).eval()), tensor_digest({**weights, **extra}))


def evaluated(network: nn.Module) -> Run:
    """A network as a function of images that keeps no gradients."""

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            return network(images)

    return run


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """The digest of tensors by name."""
    return digest_of((name, tensor.detach().cpu().numpy()) for name, tensor in tensors.items())
