"""Read the files of a listing: into memory, or when they are needed, after all of them have been checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from coattend.data.dataset import AnySplit, Split
from coattend.data.fitting import Fit, check_fit, common_size, convert_channels, describe_fit, fit_images
from coattend.data.images import ImageFacts, image_facts, opened_image, read_image
from coattend.data.listing import Files, Listing, problem_list
from coattend.data.masks import FOREGROUND, fit_mask, read_mask, verified_classes
from coattend.data.store import PACKED, UNPACKED
from coattend.data.streaming import DataError, StreamedSplit

STREAMED_ABOVE = 1 << 29  # bytes of pixels; as float32, which training needs, they take four times as much
THREADS = 4  # decoders release Python's lock

Keep = Literal["auto", "memory", "disk"]
BadFiles = Literal["stop", "skip"]
T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """The splits of a listing, how their images were unified, and what was left out."""

    parts: dict[str, AnySplit]
    classes: tuple[str, ...]
    groups: dict[str, tuple[str, ...] | None]
    changed: str
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Form:
    """What every image becomes: its channels and size, and for masks the number of classes."""

    channels: int
    size: int | None
    fit: Fit
    classes: int = 0
    foreground: bool = False  # 255 in masks stands for class 1


class FileImages(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images of files in one form, with their targets."""

    def __init__(self, files: Files, form: Form) -> None:
        self.files, self.form = files, form

    def __len__(self) -> int:
        return len(self.files.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        file, form = self.files.images[index], self.form
        try:
            image = convert_channels(read_image(file), form.channels)
            image = image if form.size is None else fit_images(image[None], form.size, form.fit)[0]
            return image, self._target(index, image)
        except DataError as error:
            raise error if str(error).startswith(str(file)) else DataError(f"{file}: {error}") from error

    def _target(self, index: int, image: Tensor) -> Tensor:
        if self.files.masks is None:
            assert self.files.labels is not None
            return self.files.labels[index]
        mask = torch.from_numpy(read_mask(self.files.masks[index]).astype(np.int64))
        mask = mask // FOREGROUND if self.form.foreground else mask
        if mask.numel() and not 0 <= int(mask.min()) <= int(mask.max()) < self.form.classes:
            raise DataError(f"its mask has class numbers outside of 0 to {self.form.classes - 1}; restore the mask.")
        mask = mask.byte()
        mask = mask if self.form.size is None else fit_mask(mask, self.form.classes, self.form.size, self.form.fit)
        if mask.shape != image.shape[1:]:
            raise DataError(f"its mask has {tuple(mask.shape)} pixels, the image {tuple(image.shape[1:])}.")
        return mask


def read_listing(
    listing: Listing, size: int | None, fit: Fit, keep: Keep = "auto", bad_files: BadFiles = "stop"
) -> Reading:
    """Read all images, or prepare them to be read; one error names every file that cannot be used.

    Without a size, images that differ in shape or are not square get a common one. Files that cannot be used are left
    out with ``bad_files="skip"``; otherwise every image is decoded once, so that none can fail later.
    """
    every = [file for part in listing.parts.values() for file in part.images]
    problems: dict[Path, str] = {}
    facts = _try_each(image_facts, every, problems)
    _check_alike(facts, problems)
    shapes = [facts[file][:2] for file in facts if file not in problems]
    if size is not None:
        check_fit(size, fit)
    elif any(height != width for height, width in shapes) or len(set(shapes)) > 1:
        size = common_size(shapes, fit)
    usable = [fact for file, fact in facts.items() if file not in problems]
    form = Form(max((fact.channels for fact in usable), default=1), size, fit)
    classes = listing.classes
    if listing.task == "segmentation":
        classes, foreground = _check_masks(listing, facts, problems, bad_files)
        form = replace(form, classes=len(classes), foreground=foreground)
    streamed = keep == "disk" or (keep == "auto" and _bytes(usable, form) > STREAMED_ABOVE)
    if size is None and not streamed and shapes:
        _check_memory(listing.path, {file: facts[file] for file in facts if file not in problems})
    side = size or (shapes[0][0] if shapes else 0)  # images that keep their size are square
    parts = {
        split: _read_part(part, form, problems, bad_files, listing.path, side if streamed else None)
        for split, part in listing.parts.items()
    }
    if problems and (bad_files == "stop" or len(problems) == len(every)):
        raise problem_list(listing.path, [problems[file] for file in sorted(problems)], len(every))
    groups = {split: _without(part, problems).groups for split, part in listing.parts.items()}
    skipped = tuple((str(file), problems[file]) for file in sorted(problems))
    return Reading(
        {split: part for split, part in parts.items() if part is not None},
        classes,
        groups,
        describe_fit(set(shapes), size, fit),
        skipped,
    )


def _read_part(
    part: Files, form: Form, problems: dict[Path, str], bad_files: BadFiles, top: Path, side: int | None
) -> AnySplit | None:
    """Return a split of the files without problems; add those that are discovered by reading. None without images.

    With the ``side`` of the images, they stay on disk.
    """
    source = FileImages(_without(part, problems), form)
    if side is not None and bad_files == "skip":
        return _streamed(source, top, side)
    number = {file: index for index, file in enumerate(source.files.images)}
    if side is not None:
        _try_each(lambda file: bool(source[number[file]]), number, problems)
        return _streamed(FileImages(_without(part, problems), form), top, side)
    examples = _try_each(lambda file: source[number[file]], number, problems)
    if not examples:
        return None
    images, targets = zip(*examples.values(), strict=True)
    return Split(torch.stack(images), torch.stack(targets), tuple(str(file) for file in examples))


def _streamed(source: FileImages, top: Path, side: int) -> StreamedSplit | None:
    files, form = source.files, source.form
    if not files.images:
        return None
    root = top if top.is_dir() else top.parent
    lengths = [(os.path.relpath(file, root), file.stat().st_size) for file in (*files.images, *(files.masks or ()))]
    fingerprint = hashlib.sha256(json.dumps([lengths, form.channels, form.size, form.fit]).encode()).hexdigest()
    names = tuple(map(str, files.images))
    return StreamedSplit(source, (form.channels, side, side), files.labels, names, fingerprint)


def _without(part: Files, problems: dict[Path, str]) -> Files:
    good = [index for index, file in enumerate(part.images) if file not in problems]
    if len(good) == len(part.images):
        return part

    def chosen(items: Sequence[Any] | None) -> Any:
        return None if items is None else tuple(items[index] for index in good)

    labels = None if part.labels is None else part.labels[torch.tensor(good, dtype=torch.int64)]
    return Files(chosen(part.images), labels, chosen(part.masks), chosen(part.groups))


def _check_alike(facts: dict[Path, ImageFacts], problems: dict[Path, str]) -> None:
    """Record files whose bits or channels differ from those of most files; grey among colours is converted."""
    if not facts:
        return
    bits = Counter(fact.bits for fact in facts.values()).most_common(1)[0][0]
    channels = Counter(fact.channels for fact in facts.values()).most_common(1)[0][0]
    convertible = {1, 3} if {fact.channels for fact in facts.values()} <= {1, 3} else {channels}
    for file, fact in facts.items():
        if fact.bits != bits:
            problems[file] = (
                f"{file}: expected {bits} bits per channel as in most of the images, got {fact.bits} bits; convert it "
                "with the scale of brightness that suits your data."
            )
        elif fact.channels not in convertible:
            problems[file] = (
                f"{file}: expected {channels} channels as in most of the images, got {fact.channels}; convert it, or "
                "keep the two kinds apart."
            )


def _check_masks(
    listing: Listing, facts: dict[Path, ImageFacts], problems: dict[Path, str], bad_files: BadFiles
) -> tuple[tuple[str, ...], bool]:
    """Read every mask once: its size has to be that of its image; return the classes of all class numbers."""
    pairs = {
        image: mask
        for part in listing.parts.values()
        for image, mask in zip(part.images, part.masks or (), strict=True)
        if image in facts and image not in problems
    }

    def numbers(image: Path) -> list[int]:
        mask = pairs[image]
        with opened_image(mask) as header:
            if (header.height, header.width) != facts[image][:2]:
                raise DataError(
                    f"{mask}: expected the mask to have the {facts[image].height} x {facts[image].width} pixels of "
                    f"{image.name}, got {header.height} x {header.width}."
                )
        return [int(value) for value in np.unique(read_mask(mask))]

    seen = _try_each(numbers, pairs, problems)
    values: dict[int, str] = {}
    for image, present in seen.items():
        for value in present:
            values.setdefault(value, str(pairs[image]))
    if not values:  # every file has a problem, which is reported by the caller
        return listing.classes, False
    return verified_classes(listing.path if listing.path.is_dir() else listing.path.parent, listing.classes, values)


def _bytes(facts: Sequence[ImageFacts], form: Form) -> int:
    total = 0
    for fact in facts:
        pixels = fact.height * fact.width if form.size is None else form.size**2
        total += pixels * (form.channels * (1 if fact.bits == 8 else 4) + bool(form.classes))
    return total


def _check_memory(path: Path, facts: dict[Path, ImageFacts]) -> None:
    """Raise if images in their own size need much more memory than their files have bytes."""
    needed = 3 * sum(fact.height * fact.width for fact in facts.values())
    if needed > max(UNPACKED, PACKED * sum(file.stat().st_size for file in facts)):
        first = next(iter(facts.values()))
        raise DataError(
            f"{path}: {len(facts):,} images of {first.height:,} x {first.width:,} pixels take {needed:,} bytes of "
            "memory, far more than their files; choose a smaller size (--size, or size= in Python)."
        )


def _try_each(read: Callable[[Path], T], files: Iterable[Path], problems: dict[Path, str]) -> dict[Path, T]:
    """Return what could be read, in the order of the files; record the problems of the others."""

    def attempt(file: Path) -> tuple[Path, T | None, str | None]:
        try:
            return file, read(file), None
        except DataError as error:
            return file, None, str(error)

    results: dict[Path, T] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for file, result, problem in pool.map(attempt, files):
            if problem is not None:
                problems[file] = problem
            else:
                results[file] = result  # type: ignore[assignment]
    return results
