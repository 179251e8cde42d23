"""Optional libraries: which extra installs each of them, and how."""

from __future__ import annotations

EXTRAS = {
    "PIL": "images",
    "lightning_fabric": "train",
    "torchmetrics": "train",
    "tensorboard": "train",
    "filelock": "train",
    "scipy": "train",
    "matplotlib": "plot",
    "jinja2": "plot",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "huggingface_hub": "hub",
    "e2cnn": "dev",
}


def install(extra: str) -> str:
    """Say how to install an extra; coattend is not on a package index, so it takes a clone."""
    return f"run `pip install -e '.[{extra}]'` in your clone of coattend"


def missing(error: ImportError) -> str | None:
    """Name the optional library that could not be imported and how to install it; None for any other module."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return None
    return f"this needs {library}, which is not installed; {install(EXTRAS[library])}."
