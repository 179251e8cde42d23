"""A trained network ready for use: from a run folder or a file, with its preprocessing and class names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coattend._files import checked_path
from coattend.data import Preprocessing, make_preprocessing
from coattend.data.fitting import Fit
from coattend.models import hub
from coattend.models.network import EquivariantNetwork
from coattend.models.records import RunError, damaged, read_header, read_header_recipe
from coattend.models.serialization import load_model, read_model_file
from coattend.nn import evaluating

BEST, LAST = "best.safetensors", "last.safetensors"  # of a run: the epoch chosen on validation, and the last


@dataclass(frozen=True)
class Prediction:
    """The class of one image, its probability, the pose the network responds to most, and all classes' probabilities.

    ``probabilities`` are in the order of ``TrainedNetwork.classes``.
    """

    label: str
    confidence: float
    pose: str
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with what its input goes through."""

    network: EquivariantNetwork
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    provenance: str
    fit: Fit = "resize"

    def predict(self, images: Tensor) -> list[Prediction]:
        """Classify images (n, channels, height, width) of bytes, or of floating point numbers from 0 to 255."""
        if images.is_floating_point() and images.numel() and 0 < float(images.max()) <= 1:
            raise ValueError(
                f"predict expects values from 0 to 255, got none above {float(images.max()):g}; multiply images that "
                "go from 0 to 1 by 255."
            )
        with evaluating(self.network):
            features = self.network.stages(self.preprocessing.apply(images))
            probabilities = self.network.head(features).double().softmax(1)
        check_finite(probabilities)
        # The pose whose responses are strongest in sum; it turns with the image, by equivariance.
        poses = features.relu().sum(dim=(1, 3, 4)).argmax(1)
        return [
            Prediction(
                self.classes[int(p.argmax())],
                float(p.max()),
                self.network.group.describe(int(pose)),
                tuple(p.tolist()),
            )
            for p, pose in zip(probabilities, poses, strict=True)
        ]


def check_finite(outputs: Tensor) -> None:
    """Refuse outputs that say nothing."""
    if not bool(outputs.isfinite().all()):
        raise RunError(
            "the network's outputs are not finite numbers: its weights are damaged or its training diverged; use "
            "another run or file."
        )


def weights_file(path: str | Path) -> Path:
    """The file with a run folder's weights: of the epoch chosen on validation, else the last; a file stays as it is."""
    path = hub.download(str(path)) if hub.is_hub_address(path) else checked_path(path)
    try:
        missing = not path.exists()
    except OSError as error:  # a name that is too long
        raise RunError(f"{path} cannot be looked up: {error.strerror}.") from error
    if missing:
        raise RunError(
            f"there is no file {path} and no run folder of that name; expected a folder that `coattend train` wrote, "
            "or a .safetensors file in it."
        )
    if not path.is_dir():
        return path
    weights = [path / name for name in (BEST, LAST) if (path / name).is_file()]
    if not weights:
        state = "is not a run folder" if not (path / "run.json").is_file() else "has no trained weights yet"
        raise RunError(f"{path} {state}; expected {BEST} or {LAST}, written by `coattend train`.")
    return weights[0]


def load_trained(path: str | Path) -> TrainedNetwork:
    """From a run folder (the epoch chosen on validation, else the last) or from one of its .safetensors files."""
    path = weights_file(path)
    metadata, _, extra = read_model_file(path)
    if "preprocessing" not in metadata:
        raise RunError(
            f"{path} holds a network without its preprocessing; expected a file written by `coattend train` (a run's "
            "best.safetensors or last.safetensors)."
        )
    header = read_header(path, metadata)
    network = load_model(path).to(torch.float32)
    classes, (channels, height, width) = tuple(header["classes"]), header["image_shape"]
    if len(classes) != network.num_classes:
        raise damaged(path, f"{len(classes)} classes for a network that tells {network.num_classes} apart")
    if channels != network.in_channels:
        raise damaged(path, f"image_shape has {channels} channels, the network takes {network.in_channels}")
    try:
        steps = header["preprocessing"]
        preprocessing = make_preprocessing(steps["steps"], steps["clip"]).load_state(extra)
    except ValueError as error:
        raise damaged(path, str(error).rstrip(".")) from error
    fit: Fit = header.get("recipe", {}).get("fit", "resize")
    provenance = metadata.get("provenance", "unknown")
    return TrainedNetwork(network, preprocessing, classes, (channels, height, width), provenance, fit)


def recipe_of(path: Path) -> dict[str, Any]:
    """The recipe that a file's network was trained by, as plain values."""
    return read_header_recipe(path, read_model_file(path)[0])
