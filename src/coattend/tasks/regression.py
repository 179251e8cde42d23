"""Regression: one or more numbers per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coattend.data.dataset import AnySplit
from coattend.tasks.task import Answer, Evaluation, ScoreTable, Task, register_task
from coattend.tasks.weighting import known_targets

if TYPE_CHECKING:
    from torchmetrics import Metric

SMALLEST = 1e-8  # a standard deviation below this means that the numbers are equal


@dataclass(frozen=True)
class Regressed(Evaluation):
    """The predicted numbers (n, targets)."""

    predictions: Tensor


@register_task
class Regression(Task):
    """Numbers in units of their training mean and spread; loss: squared error, score: R^2.

    The network's outputs are standardized: the prediction is ``mean + std * output``.
    """

    name = "regression"
    score = "R²"
    error = "unexplained variance"

    def __init__(self, classes: Sequence[str], state: Mapping[str, Any] | None = None) -> None:
        super().__init__(classes, state)
        count = len(self.classes)
        self.mean = torch.tensor((state or {}).get("mean", [0.0] * count), dtype=torch.float64)
        self.std = torch.tensor((state or {}).get("std", [1.0] * count), dtype=torch.float64)
        if self.mean.shape != (count,) or self.std.shape != (count,):
            raise ValueError(f"regression of {count} numbers needs as many means and spreads, got {state}")

    def fit(self, train: AnySplit, balanced: bool) -> None:
        """Compute mean and standard deviation of the training targets."""
        super().fit(train, balanced)
        targets = known_targets(train).double()
        std = targets.std(0, correction=0)
        if bool((std < SMALLEST).any()):
            name = self.classes[int((std < SMALLEST).nonzero()[0])]
            raise ValueError(f"the training images have one value of {name!r} only; there is nothing to learn.")
        self.mean, self.std = targets.mean(0), std

    def state(self) -> dict[str, Any]:
        """Return mean and standard deviation."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the squared error of standardized numbers, the mean over the targets."""
        wanted = ((targets.double() - self.mean.to(targets.device)) / self.std.to(targets.device)).float()
        return (outputs.float() - wanted).square().sum() / len(self.classes)

    def metric(self) -> Metric:
        """Return R^2, the mean over the targets."""
        from torchmetrics.regression import R2Score

        return R2Score(multioutput="uniform_average")

    def metric_input(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers in their own units, without an axis if there is one target."""
        predictions = self._numbers(outputs).float()
        return (predictions[:, 0], targets[:, 0]) if len(self.classes) == 1 else (predictions, targets)

    def _numbers(self, outputs: Tensor) -> Tensor:
        return self.mean.to(outputs.device) + self.std.to(outputs.device) * outputs.double()

    def evaluate(self, summaries: Tensor, targets: Tensor | None) -> Regressed:
        """Return R^2, mean absolute error and root mean square of the error for every target."""
        assert targets is not None
        predictions, truth = self._numbers(summaries).cpu(), targets.double().cpu()
        residuals = predictions - truth
        spread = (truth - truth.mean(0)).square().sum(0)
        scores = 1 - residuals.square().sum(0) / spread.clamp_min(SMALLEST**2)
        rows: dict[str, tuple[float | None, ...]] = {
            name: (
                float(scores[i]),
                float(residuals[:, i].abs().mean()),
                float(residuals[:, i].square().mean().sqrt()),
            )
            for i, name in enumerate(self.classes)
        }
        standardized = (residuals / self.std).square().mean(1)
        table = ScoreTable(("R²", "mean absolute error", "root mean square error"), rows)
        return Regressed(float(scores.mean()), standardized.mean().item(), -standardized, table, None, predictions)

    def answers(self, outputs: Tensor) -> list[Answer]:
        """Return the predicted numbers."""
        answers = []
        for row in self._numbers(outputs).tolist():
            named = zip(self.classes, row, strict=True)
            words = f"{row[0]:.6g}" if len(row) == 1 else ", ".join(f"{name} {value:.6g}" for name, value in named)
            answers.append(Answer(words, None, tuple(row)))
        return answers

    def table(self, evaluation: Evaluation, targets: Tensor | None) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return for every target the truth and the prediction."""
        assert isinstance(evaluation, Regressed)
        assert targets is not None
        headings = tuple(f"{kind} {name}" for name in self.classes for kind in ("true", "predicted"))
        rows: list[tuple[object, ...]] = [
            tuple(f"{value:.9g}" for pair in zip(truth.tolist(), answer.tolist(), strict=True) for value in pair)
            for truth, answer in zip(targets.cpu(), evaluation.predictions, strict=True)
        ]
        return headings, rows
