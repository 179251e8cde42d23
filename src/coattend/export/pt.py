"""Files for PyTorch: .pt2, which torch.export.load reads, and .pt, a frozen module for torch.load."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path

import torch
from torch import nn

from coattend._files import check_target, write_whole
from coattend.export.certificate import Certificate
from coattend.export.formats import register_format
from coattend.export.freeze import frozen_with_outputs
from coattend.export.graph import Builder
from coattend.export.input import Input, describe_input, input_of
from coattend.export.measurement import CertificateCheck, Network, certify, digest_claim, without_gradients

RECORD = "extra/certificate.json"  # where torch.export.load looks for extra files
MOST_BYTES = 2**20  # of a certificate
NOTE = "only compared, not run: loading the file with torch can run code in it"


def archive_digest(content: bytes) -> str:
    """Return the SHA-256 of names and bytes of all records but the certificate, in the order of the names."""
    total = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith(f"/{RECORD}"):
                total.update(f"{name} {archive.getinfo(name).file_size}\n".encode())
                with archive.open(name) as record:
                    while part := record.read(2**20):
                        total.update(part)
    return total.hexdigest()


def certified_archive(content: bytes, certificate: Certificate) -> bytes:
    """Return the archive with the certificate as one more record."""
    whole = io.BytesIO(content)
    with zipfile.ZipFile(whole, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{RECORD}", certificate.to_json())
    return whole.getvalue()


def check_archive(path: Path) -> CertificateCheck:
    """Compare a .pt2 or .pt file with its certificate; it is not run, because torch can run code in it."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected a {path.suffix} file written by `coattend export`.")
    content = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            records = [info for info in archive.infolist() if info.filename.endswith(f"/{RECORD}")]
            text = archive.open(records[0]).read(MOST_BYTES).decode() if records else ""
        digest = archive_digest(content)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a whole {path.suffix} file ({error}); copy or export it again.") from error
    if not records:
        raise ValueError(
            f"{path} has no certificate that can be read without loading the file, which can run code; expected a file "
            "written by `coattend export`. A .pt file of an earlier version has to be exported again."
        )
    certificate = Certificate.from_json(text, str(path))
    if certificate.format == 1:
        raise ValueError(
            f"{path} has an older certificate, about its weights only, which cannot be checked without loading the "
            "file; export the network again."
        )
    return CertificateCheck(path, certificate, (digest_claim(certificate, digest),), NOTE)


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
    frozen = frozen_with_outputs(network, Builder(image_shape=images.shape))
    frozen = frozen.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # as torch stores them
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
    stored = torch.load(io.BytesIO(content.getvalue()), weights_only=False)  # standard operations only
    return _write_certified(network, without_gradients(stored), images, content.getvalue(), path)


def _write_certified(network: nn.Module, exported: Network, images: Input, content: bytes, path: Path) -> Certificate:
    certificate = certify(network, exported, images, archive_digest(content))
    write_whole(path, certified_archive(content, certificate))
    return certificate
