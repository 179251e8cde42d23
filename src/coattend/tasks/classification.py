"""Classification: one of several classes per image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.data.dataset import AnySplit
from coattend.tasks.task import Answer, Evaluation, ScoreTable, Task, register_task
from coattend.tasks.weighting import balanced_weights, known_targets

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True)
class Classified(Evaluation):
    """Predicted classes with their probabilities, and the number of correct ones."""

    predictions: Tensor
    confidences: Tensor
    correct: int

    @property
    def error(self) -> float:
        """The percentage of images that are misclassified."""
        return 100 * (len(self.predictions) - self.correct) / len(self.predictions)


@register_task
class Classification(Task):
    """The class with the largest output; loss: cross entropy, score: accuracy.

    Without names, classes are called by their numbers.
    """

    name = "classification"
    score = "accuracy"
    error = "test error"
    weights: Tensor | None = None

    def fit(self, train: AnySplit, balanced: bool) -> None:
        """Compute the weights of the classes."""
        if balanced:
            counts = known_targets(train).bincount(minlength=len(self.classes))
            self.weights = balanced_weights(counts, self.classes)

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the cross entropy."""
        weights = None if self.weights is None else self.weights.to(outputs.device)
        return F.cross_entropy(
            outputs.float(), targets, weight=weights, reduction="sum", label_smoothing=label_smoothing
        )

    def metric(self) -> Metric:
        """Return the accuracy."""
        from torchmetrics.classification import MulticlassAccuracy

        return MulticlassAccuracy(len(self.classes), average="micro")

    def evaluate(self, summaries: Tensor, targets: Tensor | None) -> Classified:
        """Count the correct predictions: errors stay exact fractions."""
        assert targets is not None
        predictions = summaries.argmax(1)
        correct = int((predictions == targets).sum())
        loss = F.cross_entropy(summaries.double(), targets)
        probabilities = summaries.double().softmax(1)
        predictions, targets = predictions.cpu(), targets.cpu()
        confusion = torch.zeros(summaries.shape[1], summaries.shape[1], dtype=torch.int64)
        confusion.index_put_((targets, predictions), torch.tensor(1), accumulate=True)
        return Classified(
            accuracy=correct / len(predictions),
            loss=loss.item(),
            quality=probabilities.gather(1, targets[:, None].to(probabilities.device))[:, 0].cpu(),
            table=self._table(confusion),
            confusion=confusion,
            predictions=predictions,
            confidences=probabilities.amax(1).cpu(),
            correct=correct,
        )

    def _table(self, confusion: Tensor) -> ScoreTable:
        rows: dict[str, tuple[float | None, ...]] = {}
        for number, name in enumerate(self.classes or map(str, range(len(confusion)))):
            hit = int(confusion[number, number])
            images, predicted = int(confusion[number].sum()), int(confusion[:, number].sum())
            recall = hit / images if images else None
            precision = hit / predicted if predicted else None
            rows[name] = (images, recall, precision)
        return ScoreTable(("images", "recall", "precision"), rows)

    def answers(self, outputs: Tensor) -> list[Answer]:
        """Return the most probable class and the probabilities of all."""
        return [
            Answer(self.classes[int(p.argmax())], float(p.max()), tuple(p.tolist()))
            for p in outputs.double().softmax(1)
        ]

    def table(self, evaluation: Evaluation, targets: Tensor | None) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return truth, answer and confidence of every image."""
        assert isinstance(evaluation, Classified)
        assert targets is not None
        rows: list[tuple[object, ...]] = [
            (self.classes[int(truth)], self.classes[int(answer)], f"{float(confidence):.6f}")
            for truth, answer, confidence in zip(
                targets.cpu(), evaluation.predictions, evaluation.confidences, strict=True
            )
        ]
        return ("truth", "answer", "confidence"), rows
