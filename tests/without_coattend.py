"""Run exported networks where coattend cannot be imported, and compare their logits with those of the original.

    python tests/without_coattend.py FOLDER...

Each folder holds ``cases.npz`` (``images/<case>`` and ``logits/<case>``) and any of ``model.pt``, ``model.onnx``,
``model.pt2``. Prints one JSON object per folder: the largest absolute difference per file and case.
"""

from __future__ import annotations

import importlib.abc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Absent(importlib.abc.MetaPathFinder):
    """Finder that refuses coattend."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise for coattend; leave other modules to the other finders."""
        if name.partition(".")[0] == "coattend":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def loaded(folder: Path) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield every model file of the folder as a function of images."""
    if (folder / "model.pt").is_file():
        frozen = torch.load(folder / "model.pt", weights_only=False)
        yield "pt", lambda images: frozen(torch.from_numpy(images)).numpy()
    if (folder / "model.pt2").is_file():
        program = torch.export.load(str(folder / "model.pt2")).module()
        yield "pt2", lambda images: program(torch.from_numpy(images)).numpy()
    if (folder / "model.onnx").is_file():
        import onnxruntime  # type: ignore[import-untyped]

        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        yield "onnx", lambda images: session.run(["logits"], {"images": images})[0]


def differences(folder: Path) -> dict[str, float]:
    """Compare all files on all cases."""
    cases = np.load(folder / "cases.npz")
    names = [key.partition("/")[2] for key in cases if key.startswith("images/")]
    with torch.inference_mode():
        return {
            f"{kind} {name}": float(np.abs(run(cases[f"images/{name}"]) - cases[f"logits/{name}"]).max())
            for kind, run in loaded(folder)
            for name in names
        }


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent())
    for argument in sys.argv[1:]:
        print(json.dumps(differences(Path(argument))))  # noqa: T201
