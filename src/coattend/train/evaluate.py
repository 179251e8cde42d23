"""Test networks on labelled images: predictions, errors, and equivariance error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from coattend.data import load_data
from coattend.data.catalog import HeldOut, load_held_out
from coattend.data.images import convert_channels
from coattend.data.rotated_mnist import are_mirrored
from coattend.equivariance import equivariance_error
from coattend.models import EquivariantNetwork, turned
from coattend.models.classifier import Classifier, check_finite, load_trained
from coattend.models.prediction import write_csv
from coattend.models.records import RunError
from coattend.nn.observe import evaluating
from coattend.tasks import Classification, Classified, Evaluation, Task
from coattend.train.batches import AnyExamples, Examples

EXACT = 1e-4  # the largest equivariance error, in float32, that rounding explains
BATCH = 500

EvaluationPrecision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Tested:
    """The evaluation of a network on a split, the targets that fit into memory, and the indices of the images."""

    evaluation: Evaluation
    targets: Tensor | None
    indices: Tensor


def examine(fabric: Fabric, model: nn.Module, examples: AnyExamples, task: Task, batch: int = BATCH) -> Tested:
    """Test a network on a split; each process takes a part, and all return the whole result."""
    summaries, targets, indices = [], [], []
    dtype = next(model.parameters()).dtype
    with evaluating(model), fabric.autocast():
        for images, labels, index in examples.in_order(fabric.global_rank, fabric.world_size, batch):
            summaries.append(task.summary(model(images.to(dtype)).float(), labels))
            indices.append(index)
            if labels.ndim < 3:  # the summaries have what is needed of masks
                targets.append(labels)
    if not summaries:
        raise RunError("none of the images to test on can be read; restore the files.")
    gathered = _gathered(fabric, torch.cat(summaries))
    known = _gathered(fabric, torch.cat(targets)) if targets else None
    order = _gathered(fabric, torch.cat(indices))
    return Tested(task.evaluate(gathered, known), known, order)


def evaluate(fabric: Fabric, model: nn.Module, examples: AnyExamples, batch: int = BATCH) -> Classified:
    """Classify a split; each process takes a part, and all return the whole result."""
    evaluation = examine(fabric, model, examples, Classification(()), batch).evaluation
    assert isinstance(evaluation, Classified)
    return evaluation


def network_error(network: EquivariantNetwork, examples: AnyExamples) -> float:
    """Return the largest equivariance error over the network's group (p4 for plain networks) on a few images."""
    images = examples.head(8).images.to(next(network.parameters()).dtype)
    return max(equivariance_error(network, images, network.acting_group).values())


def _gathered(fabric: Fabric, part: Tensor) -> Tensor:
    """Concatenate the parts of all processes along their first axis."""
    if fabric.world_size == 1:
        return part
    counts = fabric.all_gather(torch.tensor(len(part), device=part.device))
    assert isinstance(counts, Tensor)
    lengths = [int(n) for n in counts]
    missing = max(lengths) - len(part)
    parts = fabric.all_gather(F.pad(part, (*[0, 0] * (part.ndim - 1), 0, missing)))
    return torch.cat([padded[:length] for padded, length in zip(parts, lengths, strict=True)])


@dataclass(frozen=True)
class EvaluationReport:
    """A trained network on test images.

    - labels: indices of the network's classes
    - same_data: the images are those that the network was trained on, by name or path
    - mirrored: they are digits, mirror images of those of the training
    - precision: of the evaluation, which is that of the training's own tests; not of the equivariance error
    - turns, turned: a second evaluation, over so many turned copies of each image; None without one
    """

    path: str
    trained: Classifier
    held_out: HeldOut
    labels: Tensor
    evaluation: Classified
    equivariance_error: float
    same_data: bool
    mirrored: bool
    precision: EvaluationPrecision
    turns: int = 1
    turned: Classified | None = None

    @property
    def is_equivariant(self) -> bool:
        """Whether rounding explains the equivariance error."""
        return self.equivariance_error <= EXACT

    def confusion(self) -> Tensor:
        """Return how many images of each class (rows) were classified as each class (columns)."""
        classes = len(self.trained.classes)
        counts = torch.zeros(classes, classes, dtype=torch.int64)
        return counts.index_put_((self.labels, self.evaluation.predictions), torch.tensor(1), accumulate=True)

    def write_errors(self, path: Path) -> int:
        """Write a CSV with a row per misclassified image, the most confident first; return the number of rows."""
        names = self.held_out.split.names
        wrong = torch.nonzero(self.evaluation.predictions != self.labels).flatten()
        order = wrong[self.evaluation.confidences[wrong].argsort(descending=True, stable=True)].tolist()
        classes = self.trained.classes
        rows = [
            (
                names[i] if names is not None else f"{self.held_out.name} test image {i}",
                classes[int(self.labels[i])],
                classes[int(self.evaluation.predictions[i])],
                f"{float(self.evaluation.confidences[i]):.6f}",
            )
            for i in order
        ]
        write_csv(path, ("path", "truth", "answer", "confidence"), rows)
        return len(rows)


def evaluate_classifier(path: str, data_name: str | None, turns: int = 1) -> EvaluationReport:
    """Test a trained network on the test split of its own data, or on other images with classes of the same names.

    With more than one turn, test it a second time, averaged over turned copies of each image
    (:func:`coattend.models.turned`).
    """
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise ValueError(f"turns must be a whole number of at least 1, got {turns!r}.")
    trained = load_trained(path)
    own = trained.dataset
    if own is None and data_name is None:
        raise RunError(f"{path} does not name its training data; choose the images with --data.")
    same = data_name is None or (own is not None and Path(data_name).resolve() == Path(own).resolve())
    size, fit = trained.image_shape[1], trained.fit
    if same:
        assert own is not None
        data = load_data(own, size=size, fit=fit)
        held_out = HeldOut(data.name, data.test, data.classes, data.provenance)
    else:
        assert data_name is not None
        held_out = load_held_out(data_name, trained.provenance, size=size, fit=fit)
    labels = _matched_labels(held_out, trained, path)
    images = convert_channels(held_out.split.images, trained.image_shape[0])
    examples = Examples(trained.preprocessing(images), labels)
    precision = _trained_precision(trained)
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    evaluation = evaluate(fabric, trained.network, examples)
    check_finite(evaluation.confidences)
    pixels = Examples(images.float(), labels)
    average = evaluate(fabric, turned(trained, turns), pixels, max(1, BATCH // turns)) if turns > 1 else None
    error = network_error(trained.network, examples)
    mirrored = are_mirrored(own, data_name)
    outcome = (evaluation, error, same, mirrored, precision, turns, average)
    return EvaluationReport(path, trained, held_out, labels, *outcome)


def _trained_precision(trained: Classifier) -> EvaluationPrecision:
    """The precision in which training tested this network, as far as a CPU has it."""
    recipe = json.loads(trained.metadata.get("recipe", "{}"))
    return "bf16-mixed" if recipe.get("precision") == "bf16-mixed" else "32-true"


def _matched_labels(held_out: HeldOut, trained: Classifier, path: str) -> Tensor:
    """Labels as indices of the network's classes, which are matched by name."""
    if held_out.classes == trained.classes:
        return held_out.split.labels
    unknown = [name for name in held_out.classes if name not in trained.classes]
    if unknown:
        raise RunError(
            f"{held_out.name} has classes that {path} was not trained on: {', '.join(unknown)}. The network's classes "
            f"are {', '.join(trained.classes)}, those of {held_out.name} are {', '.join(held_out.classes)}; give them "
            "the same names."
        )
    return torch.tensor([trained.classes.index(name) for name in held_out.classes])[held_out.split.labels]
