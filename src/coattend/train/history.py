"""The history of a run: the measures of every epoch (metrics.jsonl), and the best epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from coattend.models.records import COUNT, NUMBER, checked, known_fields, parsed, read_text

EPOCH = {"epoch": COUNT, "train_loss": NUMBER, "seconds": NUMBER}


@dataclass(frozen=True)
class Best:
    """The epoch with the highest score on the validation images, among equals the one with the lowest loss."""

    epoch: int
    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What was measured after one epoch; None where it was not.

    Accuracies are the scores of the task; ``waited`` counts the seconds of waiting for images on disk.
    """

    epoch: int
    lr: float | None = None
    train_loss: float
    train_accuracy: float | None = None
    valid_loss: float | None = None
    valid_accuracy: float | None = None
    relative_poses: int | None = None
    test_accuracy: float | None = None
    equivariance_error: float | None = None
    seconds: float
    images_per_second: float | None = None
    waited: float | None = None
    time: float | None = None

    def to_dict(self) -> dict[str, float]:
        """Return what was measured, as in a line of metrics.jsonl."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def read_history(path: Path) -> tuple[Epoch, ...]:
    """Read metrics.jsonl, one object per epoch; a last line without its end is still being written."""
    history = []
    for number, line in enumerate(read_text(path).split("\n")[:-1], 1):
        values = checked(path, parsed(path, line), EPOCH, f"line {number}: ")
        checked(path, values, dict.fromkeys(values, NUMBER), f"line {number}: ")
        history.append(Epoch(**known_fields(Epoch, values)))
    return tuple(history)
