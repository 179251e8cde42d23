"""Trained networks put to use on a user's own image files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coattend._files import write_atomically
from coattend.data import DataError
from coattend.data.images import convert_channels, fit_images, list_images, read_image
from coattend.models.classifier import Classifier, Prediction
from coattend.models.records import RunError


@dataclass(frozen=True)
class Answer:
    """What the network says of one image file, and the factor that its size was changed by."""

    path: Path
    prediction: Prediction
    scale: float

    def line(self) -> str:
        """For a person."""
        return f"{self.path}: {self.prediction.label}  {self.prediction.confidence:.1%}  {self.prediction.pose}"


def predict_files(trained: Classifier, images: Sequence[Path]) -> Iterator[Answer | DataError]:
    """Classify image files, and those in folders, one by one; a file that cannot be read gives its error.

    Colour, grey and size are brought to what the network was trained on.
    """
    if not images:
        raise RunError("predict expects image files or folders after the network; got none.")
    channels, size, _ = trained.image_shape
    for given in images:
        files = list_images(given) if given.is_dir() else [given]
        if not files:
            yield DataError(f"{given}: expected a folder with images, got none in it.")
        for file in files:
            try:
                image = convert_channels(read_image(file), channels)
                (prediction,) = trained.predict(fit_images(image[None], size, trained.fit))
            except DataError as error:
                yield error if str(file) in str(error) else DataError(f"{file}: {error}")
                continue
            yield Answer(file, prediction, 1.0 if trained.fit == "crop" else size / min(image.shape[1:]))


def scaling_note(trained: Classifier, answers: Sequence[Answer]) -> str | None:
    """What a person should know where images are of another scale than they are given to the network in."""
    scales = [answer.scale for answer in answers if answer.scale != 1]
    if not scales:
        return None
    by = " to ".join(dict.fromkeys(f"{scale:.3g}" for scale in (min(scales), max(scales))))
    return (
        f"{len(scales):,} of {len(answers):,} images were scaled, by {by}, to the {trained.image_shape[1]} pixels a "
        f"side that the network was trained on ({trained.provenance})"
    )


def write_answers_csv(path: Path, classes: Sequence[str], answers: Sequence[Answer]) -> None:
    """A row per image, with a column for the probability of every class."""
    found = [(str(answer.path), answer.prediction) for answer in answers]
    rows = [(file, p.label, p.confidence, p.pose, *p.probabilities) for file, p in found]
    write_csv(path, ("path", "class", "confidence", "pose", *(f"p({name})" for name in classes)), rows)


def write_answers_json(path: Path, classes: Sequence[str], answers: Sequence[Answer]) -> None:
    """A list with an object per image."""
    entries = [
        {
            "path": str(answer.path),
            "class": answer.prediction.label,
            "confidence": answer.prediction.confidence,
            "pose": answer.prediction.pose,
            "probabilities": dict(zip(classes, answer.prediction.probabilities, strict=True)),
        }
        for answer in answers
    ]
    write_atomically(path, (json.dumps(entries, indent=1, ensure_ascii=False) + "\n").encode())


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table as CSV, in one piece."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())
