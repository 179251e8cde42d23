"""Inspect the user's images before training: counts, sizes, channels, classes, and every file that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coattend.data.contact_sheet import COLUMNS, Cell, contact_sheet
from coattend.data.dataset import AnySplit, DataError, Dataset
from coattend.data.streaming import StreamedSplit
from coattend.data.user_images import UserImages, read_user_images

LISTED = 20  # problems, and sizes
SHOWN_CLASSES = 20  # rows of a contact sheet


@dataclass(frozen=True)
class Inspection:
    """What is in a folder, a table or an ``.npz``.

    - images: what could be read
    - dataset: how it would be split for training; None if it cannot be
    - problems: what has to be corrected first, or would be left out
    """

    path: Path
    images: UserImages
    dataset: Dataset | None
    problems: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield what the command line prints."""
        images = self.images
        whole = sum(map(len, images.parts.values()))
        shape = " x ".join(map(str, next(iter(images.parts.values())).image_shape)) if images.parts else "none"
        changed = f", {images.changed}" if images.changed else ""
        yield f"{self.path}: {whole:,} images {shape} for {images.task}{changed}"
        for split, part in images.parts.items():
            yield f"  {split}: {len(part):,} images{class_counts(part, images)}"
        for split, groups in images.groups.items():
            if groups is not None:
                counts = Counter(groups)
                few, many = min(counts.values()), max(counts.values())
                yield f"  {split}: {len(counts):,} groups of {few:,} to {many:,} images"
        if self.dataset is not None:
            sizes = " / ".join(f"{len(part):,}" for part in self.dataset.splits().values())
            yield f"  to train, validate and test: {sizes}; {self.dataset.provenance}"
        if self.problems:
            yield f"{len(self.problems):,} problems:"
        for problem in self.problems[:LISTED]:
            yield f"  {problem}"
        if len(self.problems) > LISTED:
            yield f"  and {len(self.problems) - LISTED:,} more"


def inspect_images(path: Path, group: str | None = None) -> Inspection:
    """Read every image once; problems do not end the inspection as long as some images can be used."""
    if not path.exists():
        raise DataError(f"{path} does not exist; expected an image folder, a table or an .npz.")
    images = read_user_images(path, bad_files="skip", group=group)
    problems = [reason for _, reason in images.skipped]
    for part in images.parts.values():
        problems += unreadable(part)
    try:
        dataset: Dataset | None = images.dataset()
    except DataError as error:
        dataset = None
        problems.append(str(error))
    return Inspection(path, images, dataset, tuple(problems))


def unreadable(part: AnySplit) -> list[str]:
    """Return the problems of images that are still on disk, by reading them all."""
    problems: list[str] = []
    if not isinstance(part, StreamedSplit):
        return problems
    for index in range(len(part)):
        try:
            part.read(index)
        except DataError as error:
            problems.append(str(error))
    return problems


def class_counts(part: AnySplit, images: UserImages) -> str:
    """Return how many images every class has, or for masks which share of the pixels."""
    labels = part.known_labels
    if labels is None or images.task == "regression":
        return ""
    if images.task == "segmentation":
        shares = labels.flatten().long().bincount(minlength=len(images.classes)).double() / max(1, labels.numel())
        named = zip(images.classes, shares.tolist(), strict=True)
        return ", share of the pixels: " + ", ".join(f"{name} {share:.1%}" for name, share in named)
    counts = labels.bincount(minlength=len(images.classes)) if labels.ndim == 1 else labels.long().sum(0)
    named = zip(images.classes, counts.tolist(), strict=True)
    return ": " + ", ".join(f"{name} {count:,}" for name, count in named)


def write_sheet(inspection: Inspection, path: Path) -> None:
    """Draw the first images of every class, one class in each row; of other tasks the first images."""
    images = inspection.images
    part = max(images.parts.values(), key=len)
    cells = []
    if images.task == "classification":
        for number, name in enumerate(images.classes[:SHOWN_CLASSES]):
            chosen = (part.labels == number).nonzero().flatten()[:COLUMNS]
            shown = part.at(chosen).in_memory()
            row = [Cell(shown.images[i], (name, _file(shown.names, i))) for i in range(len(shown))]
            cells += row + [Cell(shown.images[0] * 0 + 255, ("", ""))] * (COLUMNS - len(row)) if row else []
    else:
        shown = part.head(4 * COLUMNS).in_memory()
        for i in range(len(shown)):
            outline = shown.labels[i] if shown.labels.ndim == 3 else None
            cells.append(
                Cell(shown.images[i], (_file(shown.names, i), *_target(shown.labels[i].tolist(), outline)), outline)
            )
    contact_sheet(path, cells)


def _file(names: tuple[str, ...] | None, index: int) -> str:
    return f"image {index}" if names is None else Path(names[index]).name


def _target(values: object, outline: object) -> tuple[str, ...]:
    if outline is not None:
        return ("",)
    numbers = values if isinstance(values, list) else [values]
    return (", ".join(f"{number:.4g}" for number in numbers),)
