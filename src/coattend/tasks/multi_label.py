"""Several labels per image, each present or absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.data.dataset import AnySplit
from coattend.tasks.task import Answer, Evaluation, ScoreTable, Task, register_task
from coattend.tasks.weighting import known_targets

if TYPE_CHECKING:
    from torchmetrics import Metric

PRESENT = 0.5  # probability from which on a label is predicted


def average_precision(scores: Tensor, targets: Tensor) -> float | None:
    """Return sum_k (R_k - R_(k-1)) P_k over distinct scores, recall R and precision P; None without positives."""
    order = np.argsort(-scores.numpy(), kind="stable")
    sorted_scores, hits = scores.numpy()[order], targets.numpy()[order].astype(np.float64)
    if not hits.sum():
        return None
    last = np.append(np.flatnonzero(np.diff(sorted_scores)), len(order) - 1)  # of the images with equal scores
    hits_so_far = np.cumsum(hits)[last]
    precision, recall = hits_so_far / (last + 1), hits_so_far / hits.sum()
    return float((np.diff(recall, prepend=0.0) * precision).sum())


@dataclass(frozen=True)
class MultiLabelled(Evaluation):
    """The probabilities (n, classes), and which labels are predicted."""

    probabilities: Tensor
    predicted: Tensor


@register_task
class MultiLabel(Task):
    """A probability for every class on its own; loss: binary cross entropy, score: mean average precision."""

    name = "multi-label"
    score = "mean average precision"
    error = "1 - mean average precision"
    weights: Tensor | None = None

    def fit(self, train: AnySplit, balanced: bool) -> None:
        """Compute how much more often each label is absent than present."""
        if balanced:
            present = known_targets(train).double().mean(0)
            if (present == 0).any():
                missing = self.classes[int((present == 0).nonzero()[0])]
                raise ValueError(f"class_weights=balanced needs images of every class, got none of {missing!r}.")
            self.weights = ((1 - present) / present).float()

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the binary cross entropy, the mean over the classes."""
        wanted = targets.float() * (1 - label_smoothing) + 0.5 * label_smoothing
        weights = None if self.weights is None else self.weights.to(outputs.device)
        summed = F.binary_cross_entropy_with_logits(outputs.float(), wanted, pos_weight=weights, reduction="sum")
        return summed / len(self.classes)

    def metric(self) -> Metric:
        """Return the mean average precision."""
        from torchmetrics.classification import MultilabelAveragePrecision

        return MultilabelAveragePrecision(len(self.classes), average="macro")

    def metric_input(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and whole numbers."""
        return outputs.float().sigmoid(), targets.long()

    def evaluate(self, summaries: Tensor, targets: Tensor | None) -> Evaluation:
        """Return the average precision of every class that occurs, and their mean."""
        assert targets is not None
        logits, truth = summaries.double().cpu(), targets.cpu().long()
        losses = F.binary_cross_entropy_with_logits(logits, truth.double(), reduction="none").mean(1)
        predicted = logits.sigmoid() >= PRESENT
        rows: dict[str, tuple[float | None, ...]] = {}
        precisions = []
        for number, name in enumerate(self.classes):
            positive, chosen = truth[:, number].bool(), predicted[:, number]
            area = average_precision(logits[:, number], truth[:, number])
            hits = int((positive & chosen).sum())
            recall = hits / int(positive.sum()) if positive.any() else None
            precision = hits / int(chosen.sum()) if chosen.any() else None
            rows[name] = (int(positive.sum()), area, recall, precision)
            precisions += [] if area is None else [area]
        mean = sum(precisions) / len(precisions) if precisions else 0.0
        table = ScoreTable(("images", "average precision", "recall", "precision"), rows)
        return MultiLabelled(mean, losses.mean().item(), -losses, table, None, logits.sigmoid(), predicted)

    def answers(self, outputs: Tensor) -> list[Answer]:
        """Return the labels that are predicted, and the probabilities of all."""
        answers = []
        for p in outputs.double().sigmoid():
            names = [name for name, value in zip(self.classes, p.tolist(), strict=True) if value >= PRESENT]
            answers.append(Answer("|".join(names) or "none", float(torch.where(p >= PRESENT, p, 1 - p).min()),
                                  tuple(p.tolist())))  # fmt: skip
        return answers

    def table(self, evaluation: Evaluation, targets: Tensor | None) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return the true labels, the predicted ones, and the probabilities of all."""
        assert isinstance(evaluation, MultiLabelled)
        assert targets is not None
        rows: list[tuple[object, ...]] = [
            (self._names(truth), self._names(answer), *(f"{value:.6f}" for value in p.tolist()))
            for truth, answer, p in zip(targets.cpu(), evaluation.predicted, evaluation.probabilities, strict=True)
        ]
        return ("truth", "answer", *(f"p({name})" for name in self.classes)), rows

    def _names(self, row: Tensor) -> str:
        return "|".join(name for name, present in zip(self.classes, row.tolist(), strict=True) if present)
