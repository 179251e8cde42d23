"""One network into one file: torch.export, a frozen module, or safetensors with a certificate."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from coattend._files import check_target, write_whole
from coattend.export.archive import archive_digest, certified_archive
from coattend.export.certificate import Certificate
from coattend.export.freeze import freeze, frozen_with_outputs
from coattend.export.graph import Builder
from coattend.export.measurement import Line, Run, certify, checked_group, compared, digest_of
from coattend.export.shapes import image_shape_of
from coattend.models import load_model, read_model_file
from coattend.models.serialization import model_file_content

CERTIFICATE = "certificate"


def export_pt2(
    network: nn.Module, path: str | Path, *, size: int | None = None, overwrite: bool = False
) -> Certificate:
    """Write the frozen network for ``torch.export.load``; the certificate is the extra file ``certificate.json``.

    ``size``: height and width of the images, by default what the network was trained on, else its data set's.
    """
    path = Path(path)
    check_target(path, overwrite)
    shape = image_shape_of(network, size)
    frozen = frozen_with_outputs(network, Builder(eager=False))
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(frozen, (torch.zeros(2, *shape, dtype=torch.float32),), dynamic_shapes=(batch,))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    content = io.BytesIO()
    torch.export.save(program, content)
    digest = archive_digest(content.getvalue())
    certificate = certify(network, evaluated(program.module()), shape, digest)
    write_whole(path, certified_archive(content.getvalue(), certificate))
    return certificate


def export_frozen(
    network: nn.Module, path: str | Path, *, size: int | None = None, overwrite: bool = False
) -> Certificate:
    """Write the frozen network for ``torch.load(path, weights_only=False)``; its ``certificate`` is an attribute."""
    path = Path(path)
    check_target(path, overwrite)
    shape = image_shape_of(network, size)
    frozen = freeze(network)
    content_digest = hashlib.sha256(f"{frozen.code}\n{tensor_digest(frozen.state_dict())}".encode()).hexdigest()
    certificate = certify(network, evaluated(frozen), shape, content_digest)
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
    network = load_model(path).eval()
    if checked_group(network) != certificate.acting_group:
        raise ValueError(
            f"the certificate in {path} is about {certificate.acting_group.name}, the network over "
            f"{checked_group(network).name}; it was not made for this file, export the network again."
        )
    return certificate, compared(certificate, evaluated(network), tensor_digest({**weights, **extra}))


def evaluated(network: nn.Module) -> Run:
    """A network as a function of images that keeps no gradients."""

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            return network(images)

    return run


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """The digest of tensors by name."""
    return digest_of((name, tensor.detach().cpu().numpy()) for name, tensor in tensors.items())
