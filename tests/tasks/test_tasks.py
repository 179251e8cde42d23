"""Scores and losses of every task against loops from their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import coattend as ca
from coattend.data import Dataset, Split, make_augmentation
from coattend.tasks import (
    TASKS,
    Answer,
    Classification,
    Evaluation,
    MultiLabel,
    Regression,
    ScoreTable,
    Segmentation,
    Task,
)
from coattend.tasks.multi_label import average_precision


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_classification_is_cross_entropy_and_accuracy() -> None:
    task, outputs, labels = Classification(("a", "b", "c")), random(0, 40, 3), torch.arange(40) % 3
    assert torch.equal(
        task.loss(outputs, labels, 0.1), F.cross_entropy(outputs.float(), labels, reduction="sum", label_smoothing=0.1)
    )
    evaluation = task.evaluate(task.summary(outputs, labels), labels)
    right = [int(row.argmax()) == int(label) for row, label in zip(outputs, labels, strict=True)]
    assert evaluation.error == 100 * (40 - sum(right)) / 40
    for number, (images, recall, precision) in enumerate(evaluation.table.rows.values()):
        hits = sum(r for r, label in zip(right, labels.tolist(), strict=True) if label == number)
        assert (images, recall) == (labels.tolist().count(number), hits / labels.tolist().count(number))
        assert precision == pytest.approx(hits / evaluation.predictions.tolist().count(number))
    assert evaluation.confusion.sum() == 40


def test_average_precision_is_the_mean_precision_at_the_positives() -> None:
    scores, targets = random(1, 30), torch.arange(30) % 3 == 0
    order = scores.argsort(descending=True).tolist()
    precisions, hits = [], 0
    for rank, index in enumerate(order, 1):
        if targets[index]:
            hits += 1
            precisions.append(hits / rank)
    assert average_precision(scores, targets) == pytest.approx(np.mean(precisions), abs=1e-12)
    assert average_precision(torch.zeros(4), torch.tensor([1, 0, 0, 0])) == 0.25  # ties are one step
    assert average_precision(scores, torch.zeros(30)) is None


def test_several_labels() -> None:
    task, outputs = MultiLabel(("a", "b")), random(2, 20, 2)
    targets = (random(3, 20, 2) > 0).byte()
    wanted = sum(
        F.binary_cross_entropy(outputs[i, j].double().sigmoid(), targets[i, j].double())
        for i in range(20)
        for j in (0, 1)
    )
    assert task.loss(outputs, targets).item() == pytest.approx(wanted.item() / 2, rel=1e-5)
    evaluation = task.evaluate(task.summary(outputs, targets), targets)
    areas = [average_precision(outputs[:, j].float(), targets[:, j]) for j in (0, 1)]
    assert evaluation.accuracy == pytest.approx(np.mean(areas))
    perfect = task.evaluate(20.0 * targets - 10, targets)
    assert perfect.accuracy == 1
    (answer,) = task.answers(torch.tensor([[3.0, -2.0]]))
    assert answer == Answer("a", answer.confidence, answer.values)
    assert answer.confidence == pytest.approx(1 / (1 + np.exp(-2)))
    assert task.answers(torch.tensor([[-3.0, -2.0]]))[0].label == "none"


def test_regression_is_standardized_and_restored_from_its_state() -> None:
    targets = torch.stack([100 + 5 * random(4, 50), 0.01 * random(5, 50)], dim=1).float()
    task = Regression(("large", "small"))
    task.fit(Split(torch.zeros(50, 1, 1, 1, dtype=torch.uint8), targets), balanced=False)
    outputs = (targets.double() - targets.double().mean(0)) / targets.double().std(0, correction=0)
    perfect = task.evaluate(task.summary(outputs, targets), targets)
    assert perfect.accuracy == pytest.approx(1, abs=1e-9)
    assert task.loss(torch.zeros(50, 2), targets).item() == pytest.approx(50, rel=1e-4)
    mean = task.evaluate(torch.zeros(50, 2), targets)
    assert mean.accuracy == pytest.approx(0, abs=1e-9)  # R^2 of the mean
    again = Regression(("large", "small"), task.state())
    assert again.answers(outputs[:1].float()) == task.answers(outputs[:1].float())
    with pytest.raises(ValueError, match="one value of 'large' only"):
        task.fit(Split(torch.zeros(3, 1, 1, 1, dtype=torch.uint8), torch.ones(3, 2).float()), balanced=False)


def test_segmentation_scores_are_counts_of_pixels() -> None:
    task, outputs = Segmentation(("a", "b", "c")), random(6, 5, 3, 6, 7)
    targets = random(7, 5, 3, 6, 7).argmax(1).byte()
    evaluation = task.evaluate(task.summary(outputs, targets), None)
    predicted = outputs.argmax(1)
    for number, (share, dice, overlap) in enumerate(evaluation.table.rows.values()):
        ours, truth = predicted == number, targets == number
        both = int((ours & truth).sum())
        assert share == pytest.approx(int(truth.sum()) / truth.numel())
        assert dice == pytest.approx(2 * both / (int(ours.sum()) + int(truth.sum())))
        assert overlap == pytest.approx(both / int((ours | truth).sum()))
    assert evaluation.accuracy == pytest.approx(np.mean([row[1] for row in evaluation.table.rows.values()]))
    assert (
        task.evaluate(task.summary(20 * F.one_hot(targets.long(), 3).movedim(-1, 1).double(), targets), None).accuracy
        == 1
    )
    whole = task.loss(outputs, targets)
    parts = sum(task.loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(5))
    assert whole.item() == pytest.approx(parts.item(), rel=1e-6)  # a sum over images: processes can share a batch
    assert evaluation.loss == pytest.approx(whole.item() / 5, rel=1e-6)


def test_the_loss_of_one_image_is_cross_entropy_plus_soft_dice() -> None:
    task, outputs = Segmentation(("a", "b")), random(8, 1, 2, 4, 4)
    targets = (random(9, 1, 4, 4) > 0).byte()
    probabilities = outputs.float().softmax(1)[0]
    entropy, shared, both = 0.0, [0.0, 0.0], [0.0, 0.0]
    for y in range(4):
        for x in range(4):
            truth = int(targets[0, y, x])
            entropy -= float(probabilities[truth, y, x].log()) / 16
            for number in (0, 1):
                shared[number] += float(probabilities[number, y, x]) * (truth == number)
                both[number] += float(probabilities[number, y, x]) + (truth == number)
    dice = np.mean([(2 * s + 1) / (b + 1) for s, b in zip(shared, both, strict=True)])
    assert task.loss(outputs, targets).item() == pytest.approx(entropy + 1 - dice, rel=1e-5)


@pytest.mark.parametrize("steps", [["quarter-turns", "flips"], ["rotate"], ["elastic=2", "shift=3"]])
def test_masks_move_with_their_images(steps: list[str]) -> None:
    """An image that is its own mask: after any change both still agree, except where a line crosses a pixel."""
    blob = F.interpolate(random(10, 4, 1, 5, 5), (40, 40), mode="bicubic") > 0
    task = Segmentation(("a", "b"))
    images, masks = task.augmented(
        make_augmentation(steps), blob.float(), blob[:, 0].byte(), torch.Generator().manual_seed(0)
    )
    assert masks.dtype == torch.uint8
    assert ((images[:, 0] > 0.5) == masks.bool()).double().mean() > 0.99
    assert not torch.equal(masks, blob[:, 0].byte())


class Counting(Task):
    """A task of the user's own: the brightness of an image as one of three grades."""

    name = "counting"
    score = "share of exact counts"
    error = "wrong counts"

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum")

    def metric(self):
        return Classification(self.classes).metric()

    def evaluate(self, summaries: Tensor, targets: Tensor | None) -> Evaluation:
        right = (summaries.argmax(1) == targets).double()
        return Evaluation(float(right.mean()), 0.0, right, ScoreTable(("images",), {"all": (len(right),)}), None)

    def answers(self, outputs: Tensor) -> list[Answer]:
        return [Answer(f"{int(row.argmax())} things", None, tuple(row.tolist())) for row in outputs]

    def table(self, evaluation: Evaluation, targets: Tensor | None):
        return ("right",), [(int(value),) for value in evaluation.quality]


def test_a_task_of_the_user_s_own_trains(tmp_path) -> None:
    from coattend.models.classifier import load_trained
    from coattend.train import Recipe, fit

    torch.set_default_dtype(torch.float32)
    ca.register_task(Counting)
    try:
        labels = torch.arange(36) % 3
        images = (80 * labels[:, None, None, None] + torch.zeros(36, 3, 6, 6)).byte()
        part = Split(images, labels)
        data = Dataset("dots", part, part, part, ("0", "1", "2"), "made", "counting")
        recipe = Recipe("small", lr=0.05, epochs=10, batch=6, equivariance_every=0)
        result = fit("tests.own_networks:Plain", data, recipe, root=tmp_path, name="own")
        assert result.test_error == 0
        (answer,) = load_trained(tmp_path / "own" / "seed0").predict(images[2:3])
        assert answer.label == "2 things"
    finally:
        TASKS.remove("counting")
    with pytest.raises(ValueError, match="register_task expects a subclass of Task"):
        ca.register_task(int)
