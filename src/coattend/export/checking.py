"""``coattend check`` of a file that carries a certificate."""

from __future__ import annotations

from pathlib import Path

from coattend.export.archive import check_pt2
from coattend.export.certificate import Certificate
from coattend.export.formats import check_safetensors
from coattend.export.measurement import Line
from coattend.export.onnx import check_onnx


def check_certificate(path: str | Path) -> tuple[Certificate, list[Line]] | None:
    """Measure again what a file's certificate says; None for what is no file, or a model file without one."""
    path = Path(path)
    if path.suffix == ".onnx":
        return check_onnx(path)
    if path.suffix == ".pt2":
        return check_pt2(path)
    if path.suffix == ".pt" and path.is_file():
        raise ValueError(
            f"{path} is a pickle, which runs code when it is loaded, so it is not checked; check the .onnx or "
            ".safetensors file of the network instead."
        )
    if path.suffix == ".safetensors" and path.is_file():
        return check_safetensors(path)
    return None
