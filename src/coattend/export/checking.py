"""``coattend check`` of a file that carries a certificate."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from coattend.export.certificate import Certificate, Line
from coattend.export.formats import check_safetensors
from coattend.export.onnx_file import check_onnx


def check_certificate(path: str | Path) -> tuple[Certificate, list[Line]] | None:
    """Measure again what a file's certificate says; None for what is no file, or a model file without one."""
    path = Path(path)
    if path.suffix == ".onnx":
        return check_onnx(path)
    if path.suffix == ".safetensors" and path.is_file():
        return check_safetensors(path)
    return None


def certificate_table(certificate: Certificate, lines: list[Line], path: str) -> Table:
    """What the certificate says beside what was found."""
    title = f"{path}: {certificate.model} over {certificate.acting_group.name}, coattend {certificate.version}"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", no_wrap=True)
    for heading in ("certified", "found", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(line.what, line.certified, line.found, "agrees" if line.agrees else "DIFFERS")
    return table
