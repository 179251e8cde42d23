"""Test networks on labelled images: predictions, errors, and equivariance error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from coattend.data import StreamedSplit, load_data
from coattend.data.catalog import HeldOut, load_held_out
from coattend.data.fitting import convert_channels
from coattend.data.rotated_mnist import are_mirrored
from coattend.equivariance import equivariance_error
from coattend.models import EquivariantNetwork, turned
from coattend.models.classifier import Classifier, check_finite, load_trained
from coattend.models.prediction import write_csv
from coattend.models.records import RunError
from coattend.nn.observe import evaluating
from coattend.tasks import Classification, Classified, Evaluation, Task
from coattend.train.batches import AnyExamples, Examples, StreamedExamples
from coattend.train.recipe import Recipe

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

    - tested: the evaluation; targets are indices of the network's classes
    - same_data: the images are those that the network was trained on, by name or path
    - mirrored: they are digits, mirror images of those of the training
    - precision: of the evaluation, which is that of the training's own tests; not of the equivariance error
    - turns, turned: a second evaluation, over so many turned copies of each image; None without one
    """

    path: str
    trained: Classifier
    held_out: HeldOut
    tested: Tested
    equivariance_error: float
    same_data: bool
    mirrored: bool
    precision: EvaluationPrecision
    turns: int = 1
    turned: Classified | None = None

    @property
    def evaluation(self) -> Evaluation:
        """Scores and predictions."""
        return self.tested.evaluation

    @property
    def labels(self) -> Tensor:
        """The true classes, as indices of the network's; only for tasks whose targets are in memory."""
        assert self.tested.targets is not None
        return self.tested.targets

    def confusion(self) -> Tensor:
        """Return how many images, or pixels, of each class (rows) were given which class (columns)."""
        assert self.evaluation.confusion is not None
        return self.evaluation.confusion

    @property
    def is_equivariant(self) -> bool:
        """Whether rounding explains the equivariance error."""
        return self.equivariance_error <= EXACT

    def names(self) -> list[str]:
        """Return the file of every tested image, or its number."""
        names = self.held_out.split.names
        indices = self.tested.indices.tolist()
        return [f"{self.held_out.name} test image {i}" if names is None else names[i] for i in indices]

    def write_predictions(self, path: Path) -> int:
        """Write a CSV with a row per image: truth, answer and how good it is; return the number of rows."""
        headings, rows = self.trained.task.table(self.evaluation, self.tested.targets)
        write_csv(path, ("path", *headings), [(n, *row) for n, row in zip(self.names(), rows, strict=True)])
        return len(rows)

    def write_errors(self, path: Path) -> int:
        """Write a CSV with a row per misclassified image, the most confident first; return the number of rows."""
        evaluation, labels, names = self.evaluation, self.tested.targets, self.names()
        if not isinstance(evaluation, Classified) or labels is None:
            raise RunError(f"misclassified images are listed for classification, and {self.path} is for "
                           f"{self.trained.task.name}; --csv writes the predictions of all images.")  # fmt: skip
        wrong = torch.nonzero(evaluation.predictions != labels).flatten()
        order = wrong[evaluation.confidences[wrong].argsort(descending=True, stable=True)].tolist()
        headings, table = self.trained.task.table(evaluation, labels)
        write_csv(path, ("path", *headings), [(names[i], *table[i]) for i in order])
        return len(order)


def evaluate_classifier(path: str, data_name: str | None, turns: int = 1) -> EvaluationReport:
    """Test a trained network on the test split of its own data, or on other images with classes of the same names.

    With more than one turn, test a classifier a second time, averaged over turned copies of each image
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
        data = load_data(own, size=size, fit=fit, group=trained.recipe.get("group"))
        held_out = HeldOut(data.name, data.test, data.classes, data.provenance, data.task)
    else:
        assert data_name is not None
        held_out = load_held_out(data_name, trained.provenance, size=size, fit=fit)
    if held_out.task != trained.task.name:
        raise RunError(f"{path} is for {trained.task.name}, {held_out.name} has targets for {held_out.task}.")
    examples = _examples(held_out, trained, path)
    precision = _trained_precision(trained)
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    tested = examine(fabric, trained.network, examples, trained.task)
    if isinstance(tested.evaluation, Classified):
        check_finite(tested.evaluation.confidences)
    check_finite(torch.tensor(tested.evaluation.loss))
    average = None
    if turns > 1:
        if not isinstance(tested.evaluation, Classified) or not isinstance(examples, Examples):
            raise RunError("--turns averages the classes of turned copies, of images in memory; leave it out.")
        pixels = convert_channels(held_out.split.in_memory().images, trained.image_shape[0]).float()
        at_once = max(1, BATCH // turns)
        average = evaluate(fabric, turned(trained, turns), Examples(pixels, examples.labels), at_once)
    error = network_error(trained.network, examples)
    mirrored = are_mirrored(own, data_name)
    return EvaluationReport(path, trained, held_out, tested, error, same, mirrored, precision, turns, average)


def _examples(held_out: HeldOut, trained: Classifier, path: str) -> AnyExamples:
    """Return the images as the network takes them; those on disk are read one batch after the other."""
    split = held_out.split
    if isinstance(split, StreamedSplit) and held_out.classes == trained.classes:
        if split.image_shape != trained.image_shape:
            raise RunError(f"{path} takes images {trained.image_shape}, {held_out.name} has {split.image_shape}.")
        return StreamedExamples(split, trained.preprocessing, torch.device("cpu"), Recipe("evaluate", batch=BATCH))
    stored = split.in_memory()
    labels = _matched_labels(stored.labels, held_out, trained, path)
    return Examples(trained.preprocessing(convert_channels(stored.images, trained.image_shape[0])), labels)


def _trained_precision(trained: Classifier) -> EvaluationPrecision:
    """The precision in which training tested this network, as far as a CPU has it."""
    return "bf16-mixed" if trained.recipe.get("precision") == "bf16-mixed" else "32-true"


def _matched_labels(labels: Tensor, held_out: HeldOut, trained: Classifier, path: str) -> Tensor:
    """Labels as indices of the network's classes, which are matched by name."""
    if held_out.classes == trained.classes:
        return labels
    if held_out.task != Classification.name:
        raise RunError(
            f"{path} was trained for {', '.join(trained.classes)}, {held_out.name} has {', '.join(held_out.classes)}; "
            "expected the same names in the same order."
        )
    unknown = [name for name in held_out.classes if name not in trained.classes]
    if unknown:
        raise RunError(
            f"{held_out.name} has classes that {path} was not trained on: {', '.join(unknown)}. The network's classes "
            f"are {', '.join(trained.classes)}, those of {held_out.name} are {', '.join(held_out.classes)}; give them "
            "the same names."
        )
    return torch.tensor([trained.classes.index(name) for name in held_out.classes])[labels]
