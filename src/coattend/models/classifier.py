"""A trained network ready for use: network, preprocessing and class names, from a run folder or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from torch import Tensor, nn

from coattend._files import checked_path
from coattend.data import Preprocessing, make_preprocessing
from coattend.data.fitting import Fit
from coattend.data.rotated_mnist import current_name
from coattend.models import hub
from coattend.models.network import EquivariantNetwork
from coattend.models.records import TABLE, TEXT, RunError, checked, damaged, parsed, read_header
from coattend.models.serialization import load_model_file, save_model
from coattend.nn.observe import evaluating, recording
from coattend.tasks import TASKS, Classification, Task

BEST, LAST = "best.safetensors", "last.safetensors"  # of a run: the epoch chosen on validation, and the last


@dataclass(frozen=True)
class Prediction:
    """The predicted class of one image, its probability, the strongest pose, and the probabilities of all classes.

    The strongest pose is the one with the largest sum of responses. ``probabilities`` are in the order of
    ``Classifier.classes``. For other tasks these are what the task answers: several labels, numbers, shares of pixels.
    """

    label: str
    confidence: float | None
    pose: str
    probabilities: tuple[float, ...]


class Classifier(nn.Module):
    """A trained network with its preprocessing, for classification or another task: maps pixels to logits.

    - image_shape: channels, height and width of the images that the network was trained on
    - provenance: the origin of these images
    - fit: how images of other sizes are brought to this one
    - metadata: further texts that are saved with the network, such as the recipe that trained it
    - task: what the outputs mean; by default classification
    """

    def __init__(
        self,
        network: EquivariantNetwork,
        preprocessing: Preprocessing,
        classes: Sequence[str],
        image_shape: tuple[int, int, int],
        provenance: str = "unknown",
        fit: Fit = "resize",
        metadata: Mapping[str, str] | None = None,
        task: Task | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        self.classes = tuple(classes)
        self.image_shape = image_shape
        self.provenance = provenance
        self.fit: Fit = fit
        self.metadata = dict(metadata or {})
        self.task = Classification(self.classes) if task is None else task

    @property
    def recipe(self) -> dict[str, Any]:
        """The fields of the recipe that trained the network; empty if the file has none."""
        recipe: dict[str, Any] = json.loads(self.metadata.get("recipe", "{}"))
        return recipe

    @property
    def dataset(self) -> str | None:
        """Today's name, or the path, of the dataset that the network was trained on; None if the file has none."""
        name = self.recipe.get("data")
        return None if name is None else current_name(name, self.provenance)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits (n, classes), of masks (n, classes, height, width), for pixels from 0 to 255."""
        return self.network(self.preprocessing(pixels).to(next(self.network.parameters()).dtype))

    def predict(self, images: Tensor) -> list[Prediction]:
        """Classify images (n, channels, height, width), bytes or floating-point values from 0 to 255."""
        if (
            isinstance(images, Tensor)
            and images.is_floating_point()
            and images.numel()
            and 0 < float(images.max()) <= 1
        ):
            raise ValueError(
                f"predict expects values from 0 to 255, got none above {float(images.max()):g}; multiply images with "
                "values from 0 to 1 by 255."
            )
        return self.predict_pixels(images)

    def predict_pixels(self, images: Tensor) -> list[Prediction]:
        """Classify images that are known to have values from 0 to 255; those of dark files with 16 bits are below 1."""
        stages = {"stages": self.network.stages}
        with evaluating(self), recording(self.network, lambda call: call.output, stages) as features:
            outputs = self(images)
        check_finite(outputs)
        return [
            Prediction(answer.label, answer.confidence, pose, answer.values)
            for answer, pose in zip(self.task.answers(outputs), self._poses(features[-1]), strict=True)
        ]

    def _poses(self, features: Tensor) -> list[str]:
        """Return the strongest pose of each image, which rotates with it; empty for features without a group axis."""
        if not isinstance(features, Tensor) or features.ndim != 5:
            return [""] * len(features)
        return [self.network.group.describe(int(pose)) for pose in features.relu().sum(dim=(1, 3, 4)).argmax(1)]

    def save(self, path: str | Path) -> None:
        """Write everything into one safetensors file, which :func:`load_trained` reads."""
        self.preprocessing.check_fitted()
        metadata = {
            **self.metadata,
            "preprocessing": json.dumps({"steps": self.preprocessing.names, "clip": self.preprocessing.clip}),
            "classes": json.dumps(self.classes),
            "image_shape": json.dumps(self.image_shape),
            "provenance": self.provenance,
            "fit": self.fit,
        }
        if self.task.name != Classification.name:
            metadata["task"] = json.dumps({"name": self.task.name, "state": self.task.state()})
        state = self.preprocessing.state_dict()
        tensors = {stored: state[key] for key, stored in _stored_names(self.preprocessing).items()}
        save_model(self.network, path, metadata=metadata, extra_tensors=tensors)

    def extra_repr(self) -> str:
        """Return classes and image shape."""
        return f"{len(self.classes)} classes, image_shape={self.image_shape}"


def check_finite(outputs: Tensor) -> None:
    """Raise if an output of a network is not a finite number."""
    if not bool(outputs.isfinite().all()):
        raise RunError(
            "the network's outputs are not finite numbers: its weights are damaged or its training diverged; use "
            "another run or file."
        )


def weights_file(path: str | Path) -> Path:
    """Return the weights of a run folder, of the epoch chosen on validation or else the last; return a file itself."""
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
    weights = run_weights(path)
    if weights is None:
        state = "is not a run folder" if not (path / "run.json").is_file() else "has no trained weights yet"
        raise RunError(f"{path} {state}; expected {BEST} or {LAST}, written by `coattend train`.")
    return weights


def run_weights(folder: Path) -> Path | None:
    """Return the weights of a run: of the epoch chosen on validation, or else the last."""
    return next((folder / name for name in (BEST, LAST) if (folder / name).is_file()), None)


def load_trained(path: str | Path) -> Classifier:
    """Load a classifier from a run folder (the epoch chosen on validation, else the last) or a .safetensors file."""
    path = weights_file(path)
    network, metadata, extra = load_model_file(path)
    if "preprocessing" not in metadata:
        raise RunError(
            f"{path} holds a network without its preprocessing; expected a file written by `coattend train` (a run's "
            "best.safetensors or last.safetensors)."
        )
    header = read_header(path, metadata)
    classes, (channels, height, width) = tuple(header["classes"]), header["image_shape"]
    if len(classes) != network.num_classes:
        raise damaged(path, f"{len(classes)} classes for a network that distinguishes {network.num_classes}")
    if channels != network.in_channels:
        raise damaged(path, f"image_shape has {channels} channels, the network takes {network.in_channels}")
    return Classifier(
        network.float(),
        _load_preprocessing(path, header["preprocessing"], extra),
        classes,
        (channels, height, width),
        metadata.get("provenance", "unknown"),
        _read_fit(path, metadata, header),
        {key: metadata[key] for key in ("recipe",) if key in metadata},
        _read_task(path, metadata, classes),
    )


def _read_task(path: Path, metadata: Mapping[str, str], classes: Sequence[str]) -> Task:
    """Return the task of a file; files without one are for classification."""
    if "task" not in metadata:
        return Classification(classes)
    values = checked(path, parsed(path, metadata["task"]), {"name": TEXT, "state": TABLE}, "task.")
    try:
        return TASKS[values["name"]](classes, values["state"])
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} is for a task that cannot be restored: {error}") from error


def _read_fit(path: Path, metadata: Mapping[str, str], header: Mapping[str, Any]) -> Fit:
    fit: Any = metadata.get("fit") or header.get("recipe", {}).get("fit", "resize")  # earlier versions: in the recipe
    if fit not in get_args(Fit):
        raise damaged(path, f"fit is {fit[:40]!r} instead of {' or '.join(get_args(Fit))}")
    return cast(Fit, fit)


def _load_preprocessing(path: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Preprocessing:
    try:
        preprocessing = make_preprocessing(description["steps"], description["clip"])
        names = _stored_names(preprocessing)
        if set(names.values()) != set(tensors):
            raise ValueError(f"the steps {preprocessing.names} need {sorted(names.values())}, got {sorted(tensors)}")
        preprocessing.load_state_dict({key: tensors[stored] for key, stored in names.items()})
    except (ValueError, RuntimeError) as error:
        raise damaged(path, str(error).rstrip(".")) from error
    return preprocessing


def _stored_names(preprocessing: Preprocessing) -> dict[str, str]:
    """Return the names of the preprocessing's tensors in a file, which contain the names of the steps."""
    return {
        f"steps.{number}.{buffer}": f"{number}.{name}.{buffer}"
        for number, name in enumerate(preprocessing.names)
        for buffer in preprocessing.steps[number].learnt
    }
