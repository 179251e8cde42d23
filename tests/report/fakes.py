"""Files such as training writes, without the training."""

from __future__ import annotations

import json
from pathlib import Path

import coattend as ca
from coattend.models.classifier import TrainedNetwork


def save_as_trained(one: TrainedNetwork, file: Path) -> None:
    """Write a network with what load_trained wants to know about it."""
    metadata = {
        "preprocessing": json.dumps({"steps": one.preprocessing.names, "clip": None}),
        "image_shape": json.dumps(one.image_shape),
        "classes": json.dumps(one.classes),
        "provenance": one.provenance,
    }
    ca.save_model(one.network, file, metadata=metadata, extra_tensors=one.preprocessing.state())
