"""Words of messages: near matches of a name, and how to install an optional library."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXTRAS = {
    "PIL": "images",
    "lightning_fabric": "train",
    "torchmetrics": "train",
    "tensorboard": "train",
    "scipy": "train",
    "matplotlib": "plot",
    "jinja2": "plot",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "huggingface_hub": "hub",
    "ray": "cluster",
    "e2cnn": "dev",
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known words, for a message; empty if none is near.

    >>> did_you_mean("p4cn", ["p4cnn", "z2cnn", "nin"])
    ' (did you mean p4cnn?)'
    """
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def install(extra: str) -> str:
    """Return how to install an extra; coattend is not on a package index, so it takes a clone."""
    return f"run `pip install -e '.[{extra}]'` in your clone of coattend"


def missing(error: ImportError) -> str | None:
    """Return which optional library is not installed and how to install it; None for any other module."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return None
    return f"this needs {library}, which is not installed; {install(EXTRAS[library])}."
