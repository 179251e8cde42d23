"""Predictions of a classifier for the user's image files, and their tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coattend._files import write_atomically
from coattend.data import DataError
from coattend.data.fitting import convert_channels, fit_images
from coattend.data.images import list_images, read_image
from coattend.models.classifier import Classifier, Prediction
from coattend.models.records import RunError


@dataclass(frozen=True)
class FilePrediction:
    """The prediction for one image file, and the factor by which the image was scaled."""

    path: Path
    prediction: Prediction
    scale: float

    def line(self) -> str:
        """Return the line that the command line prints."""
        confidence, pose = self.prediction.confidence, self.prediction.pose
        figures = ["" if confidence is None else f"{confidence:.1%}", pose]
        return "  ".join([f"{self.path}: {self.prediction.label}", *filter(None, figures)])


def predict_files(classifier: Classifier, images: Sequence[Path]) -> Iterator[FilePrediction | DataError]:
    """Classify image files, and those in folders, one by one; yield the error of a file that cannot be read.

    Channels and size of the images are converted to those that the network was trained on.
    """
    if not images:
        raise RunError("predict expects image files or folders after the network; got none.")
    channels, size, _ = classifier.image_shape
    for given in images:
        files = list_images(given) if given.is_dir() else [given]
        if not files:
            yield DataError(f"{given}: expected a folder with images, got none in it.")
        for file in files:
            try:
                image = convert_channels(read_image(file), channels)
                (prediction,) = classifier.predict_pixels(fit_images(image[None], size, classifier.fit))
            except DataError as error:
                yield error if str(file) in str(error) else DataError(f"{file}: {error}")
                continue
            yield FilePrediction(file, prediction, 1.0 if classifier.fit == "crop" else size / min(image.shape[1:]))


def scaling_note(classifier: Classifier, predictions: Sequence[FilePrediction]) -> str | None:
    """Return which images were scaled, and to what; None if none was."""
    scales = [file.scale for file in predictions if file.scale != 1]
    if not scales:
        return None
    size = classifier.image_shape[1]
    by = " to ".join(dict.fromkeys(f"{scale:.3g}" for scale in (min(scales), max(scales))))
    return (
        f"{len(scales):,} of {len(predictions):,} images were scaled, by {by}, to the {size} pixels a side that the "
        f"network was trained on ({classifier.provenance})"
    )


def write_predictions_csv(path: Path, classes: Sequence[str], predictions: Sequence[FilePrediction]) -> None:
    """Write a row per image, with a column for the probability of every class."""
    named = [(str(file.path), file.prediction) for file in predictions]
    rows = [
        (name, p.label, "" if p.confidence is None else p.confidence, p.pose, *p.probabilities) for name, p in named
    ]
    headings = tuple(name if rows and rows[0][2] == "" else f"p({name})" for name in classes)
    write_csv(path, ("path", "class", "confidence", "pose", *headings), rows)


def write_predictions_json(path: Path, classes: Sequence[str], predictions: Sequence[FilePrediction]) -> None:
    """Write a list with an object per image."""
    entries = [
        {
            "path": str(file.path),
            "class": file.prediction.label,
            "confidence": file.prediction.confidence,
            "pose": file.prediction.pose,
            "probabilities": dict(zip(classes, file.prediction.probabilities, strict=True)),
        }
        for file in predictions
    ]
    write_atomically(path, (json.dumps(entries, indent=1, ensure_ascii=False) + "\n").encode())


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table as CSV, in one piece."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())
