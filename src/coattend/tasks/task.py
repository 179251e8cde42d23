"""The base class of tasks, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Generator, Tensor

from coattend._registry import Registry
from coattend.data.augmentation import Augmentation
from coattend.data.dataset import AnySplit, Dataset

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True)
class ScoreTable:
    """Figures by class: headings, and for each class one figure per heading, None where it is not defined."""

    headings: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Answer:
    """The prediction for one image: in words, with a probability where there is one, and a number for every class."""

    label: str
    confidence: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """A network on a whole split.

    - accuracy: the task's score; 1 is perfect
    - loss: the mean over the images
    - quality: (n,) how good each image's prediction is, the lowest is the worst
    - table: figures of every class
    - confusion: counts of the true classes (rows) and the predicted ones (columns); None where there is no such thing
    """

    accuracy: float
    loss: float
    quality: Tensor
    table: ScoreTable
    confusion: Tensor | None

    @property
    def error(self) -> float:
        """What is missing to a perfect score, in percent."""
        return 100 * (1 - self.accuracy)


class Task(ABC):
    """What a network is trained for.

    A subclass is registered by :func:`register_task`. It gets the names of the classes, which are as many as the
    network has outputs; what :meth:`fit` computes from the training targets is in :meth:`state`, which is saved with
    the network and restored by ``Task(classes, state)``.

    - name: of the task in datasets and files
    - score: what :attr:`Evaluation.accuracy` is called
    - error: what :attr:`Evaluation.error` is called
    """

    name: ClassVar[str]
    score: ClassVar[str]
    error: ClassVar[str]

    def __init__(self, classes: Sequence[str], state: Mapping[str, Any] | None = None) -> None:
        self.classes = tuple(classes)

    def fit(self, train: AnySplit, balanced: bool) -> None:
        """Compute what the task needs from the training targets; ``balanced`` weighs all classes alike."""
        if balanced:
            raise ValueError(f"class_weights=balanced is not defined for {self.name}; leave it out.")

    def state(self) -> dict[str, Any]:
        """Return what a saved network needs to predict, as plain values for JSON."""
        return {}

    def output_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, ...]:
        """Return the shape of the network's output for one image."""
        return (len(self.classes),)

    def augmented(
        self, augment: Augmentation, images: Tensor, targets: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Return a batch after a random change; targets stay as they are unless they follow the pixels."""
        return augment(images, generator), targets

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the loss summed over the images of a batch."""

    @abstractmethod
    def metric(self) -> Metric:
        """Return the score as a metric over the batches of an epoch; :meth:`metric_input` is its input."""

    def metric_input(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions and targets as the metric takes them."""
        return outputs, targets

    def summary(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one row of numbers per image, all that :meth:`evaluate` needs of the outputs."""
        return outputs.float()

    @abstractmethod
    def evaluate(self, summaries: Tensor, targets: Tensor | None) -> Evaluation:
        """Return the scores of a split from the summaries of all images, and their targets if these are in memory."""

    @abstractmethod
    def answers(self, outputs: Tensor) -> list[Answer]:
        """Return the prediction for each image."""

    @abstractmethod
    def table(self, evaluation: Evaluation, targets: Tensor | None) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return headings and a row per image for a CSV of all predictions: truth, answer and how good it is."""


TASKS: Registry[type[Task]] = Registry("task")

Kind = TypeVar("Kind", bound=type[Task])


def register_task(kind: Kind) -> Kind:
    """Make a subclass of :class:`Task` available to datasets under its name; a decorator."""
    if not (isinstance(kind, type) and issubclass(kind, Task)) or not isinstance(getattr(kind, "name", None), str):
        raise ValueError(f"register_task expects a subclass of Task with a name, got {kind!r}.")
    TASKS.add(kind.name, kind)
    return kind


def make_task(data: Dataset, train: AnySplit, balanced: bool = False) -> Task:
    """Return the task of a dataset, fitted to its training targets."""
    task = TASKS[data.task](data.classes)
    task.fit(train, balanced)
    return task
