"""Segmentation: a class for every pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from coattend.data.augmentation import Augmentation
from coattend.data.dataset import AnySplit
from coattend.tasks.task import Answer, Evaluation, ScoreTable, Task, register_task
from coattend.tasks.weighting import balanced_weights, known_targets

if TYPE_CHECKING:
    from torchmetrics import Metric

SMOOTH = 1.0  # pixels added to both parts of a soft Dice, which is not defined for a class that an image does not have


@dataclass(frozen=True)
class Segmented(Evaluation):
    """The Dice coefficient of every class in every image (n, classes), nan where an image has nothing of it."""

    dice: Tensor


def dice(confusion: Tensor) -> Tensor:
    """Return 2 TP / (2 TP + FP + FN) of every class, from counts (..., truth, prediction); nan without pixels."""
    hits = confusion.diagonal(dim1=-2, dim2=-1)
    return 2 * hits / (confusion.sum(-1) + confusion.sum(-2))


def intersection_over_union(confusion: Tensor) -> Tensor:
    """Return TP / (TP + FP + FN) of every class; nan without pixels."""
    hits = confusion.diagonal(dim1=-2, dim2=-1)
    return hits / (confusion.sum(-1) + confusion.sum(-2) - hits)


@register_task
class Segmentation(Task):
    """The class with the largest output at each pixel.

    Loss: cross entropy, the mean over the pixels, plus one minus the soft Dice, the mean over the classes; score: the
    Dice coefficient over all pixels of a split, the mean over the classes.
    """

    name = "segmentation"
    score = "mean Dice"
    error = "1 - mean Dice"
    weights: Tensor | None = None

    def fit(self, train: AnySplit, balanced: bool) -> None:
        """Compute the weights of the classes from their pixels."""
        if balanced:
            counts = known_targets(train).flatten().long().bincount(minlength=len(self.classes))
            self.weights = balanced_weights(counts, self.classes)

    def output_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """Return classes, height and width."""
        return (len(self.classes), *image_shape[1:])

    def augmented(
        self, augment: Augmentation, images: Tensor, targets: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Move images and masks together: classes are channels that are interpolated, and the largest counts."""
        channels = F.one_hot(targets.long(), len(self.classes)).movedim(-1, 1).to(images.dtype)
        moved = augment(torch.cat([images, channels], dim=1), generator)
        return moved[:, : images.shape[1]], moved[:, images.shape[1] :].argmax(1).to(targets.dtype)

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the sum of the losses of the images."""
        return self._losses(outputs.float(), targets.long(), label_smoothing).sum()

    def _losses(self, outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        weights = None if self.weights is None else self.weights.to(outputs)
        entropy = F.cross_entropy(
            outputs, targets, weight=weights, reduction="none", label_smoothing=label_smoothing
        ).mean((1, 2))
        probabilities = outputs.softmax(1)
        truth = F.one_hot(targets, len(self.classes)).movedim(-1, 1).to(probabilities)
        shared, both = (probabilities * truth).sum((2, 3)), (probabilities + truth).sum((2, 3))
        return entropy + 1 - ((2 * shared + SMOOTH) / (both + SMOOTH)).mean(1)

    def metric(self) -> Metric:
        """Return the mean Dice over all pixels, which is the F1 score."""
        from torchmetrics.classification import MulticlassF1Score

        return MulticlassF1Score(len(self.classes), average="macro")

    def metric_input(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return predicted and true classes."""
        return outputs.argmax(1), targets.long()

    def summary(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for every image its loss, and how many pixels of each class were given which class."""
        count = len(self.classes)
        losses = self._losses(outputs.double(), targets.long(), 0.0)
        joint = targets.long() * count + outputs.argmax(1)
        confusion = torch.zeros(len(outputs), count * count, dtype=torch.float64, device=outputs.device)
        confusion.scatter_add_(1, joint.flatten(1), torch.ones_like(joint.flatten(1), dtype=torch.float64))
        return torch.cat([losses[:, None], confusion], dim=1)

    def evaluate(self, summaries: Tensor, targets: Tensor | None) -> Segmented:
        """Add the counts of all images."""
        summaries, count = summaries.cpu().double(), len(self.classes)
        confusions = summaries[:, 1:].unflatten(1, (count, count))
        whole, by_image = confusions.sum(0), dice(confusions)
        of_class, overlap = dice(whole), intersection_over_union(whole)
        rows: dict[str, tuple[float | None, ...]] = {
            name: (float(whole[i].sum() / whole.sum()), _defined(of_class[i]), _defined(overlap[i]))
            for i, name in enumerate(self.classes)
        }
        table = ScoreTable(("share of pixels", "Dice", "IoU"), rows)
        score, quality = float(of_class.nanmean()), by_image.nanmean(1)
        return Segmented(score, float(summaries[:, 0].mean()), quality, table, whole.long(), by_image)

    def answers(self, outputs: Tensor) -> list[Answer]:
        """Return the share of the pixels that every class has."""
        answers = []
        for labels in outputs.argmax(1):
            shares = (labels.flatten().bincount(minlength=len(self.classes)).double() / labels.numel()).tolist()
            words = ", ".join(f"{name} {share:.1%}" for name, share in zip(self.classes, shares, strict=True) if share)
            answers.append(Answer(words, None, tuple(shares)))
        return answers

    def table(self, evaluation: Evaluation, targets: Tensor | None) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return the mean Dice of every image, and that of every class it has."""
        assert isinstance(evaluation, Segmented)
        rows: list[tuple[object, ...]] = [
            (f"{quality:.6f}", *("" if value != value else f"{value:.6f}" for value in row))
            for quality, row in zip(evaluation.quality.tolist(), evaluation.dice.tolist(), strict=True)
        ]
        return ("mean Dice", *(f"Dice {name}" for name in self.classes)), rows


def _defined(value: Tensor) -> float | None:
    return None if bool(value.isnan()) else float(value)
