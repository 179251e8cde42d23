"""The user's own images, from a folder or an ``.npz``, with given splits or splits by a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coattend.data.dataset import DataError, Dataset, Split, concatenate
from coattend.data.image_folder import WHOLE, describe_fit, read_folder
from coattend.data.images import Fit, common_size, fit_images
from coattend.data.store import SPLITS, UNREADABLE, as_tensor, is_dataset, open_npz, read_dataset, sha256

SEED = 0
SHARE = 0.1  # of each class, to validate and to test on


@dataclass(frozen=True)
class UserImages:
    """Images as read, before splitting; ``changed`` describes new sizes, ``stored`` is the provenance in the file."""

    path: Path
    parts: dict[str, Split]
    classes: tuple[str, ...]
    changed: str = ""
    stored: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the folder, or of the file without its suffix."""
        return self.path.name if self.path.is_dir() else self.path.stem

    @property
    def provenance(self) -> str:
        """Return how the images are split for training, what was changed, and a digest of all."""
        return self._describe(self._splitting())

    def dataset(self) -> Dataset:
        """Return a dataset to train on; missing splits are taken from the training images, class by class."""
        if len(self.classes) < 2:
            raise DataError(
                f"{self.path}: expected at least two classes, got {list(self.classes)}; give each class a folder of "
                "images, or its own number in an .npz."
            )
        if not {WHOLE, "train"} & set(self.parts):
            raise DataError(f"{self.path} has images in {' and '.join(self.parts)} only; expected train as well.")
        for split, part in self.parts.items():
            counts = part.labels.bincount(minlength=len(self.classes)).tolist()
            if 0 in counts:
                where = "" if split == WHOLE else f" in the {split} split"
                raise DataError(
                    f"{self.path}: expected images of the class {self.classes[counts.index(0)]!r}{where}, got none; "
                    "add some or remove it."
                )
        splits = {**self.parts, **self._split()}
        splits = {split: splits[split] for split in SPLITS}
        return Dataset(self.name, **splits, classes=self.classes, provenance=self.provenance)

    def to_test(self) -> tuple[Split, str]:
        """Return images to test a network on that was trained on others, the test split or else all, and provenance."""
        if "test" in self.parts:
            return self.parts["test"], self._describe("test split")
        return concatenate(list(self.parts.values())), self._describe("all images")

    def _describe(self, which: str) -> str:
        if self.stored is not None:
            return ", ".join(filter(None, (self.stored, self.changed)))
        digests = [sha256(x.numpy()) for part in self.parts.values() for x in (part.images, part.labels)]
        facts = (which, self.changed, sha256(np.array(digests))[:12])
        return f"own images {self.path.name} ({', '.join(filter(None, facts))})"

    def _missing(self) -> list[str]:
        return [split for split in ("valid", "test") if split not in self.parts]

    def _splitting(self) -> str:
        if WHOLE in self.parts:
            return f"split 80/10/10 by seed {SEED}"
        if not self._missing():
            return "splits as given"
        return f"{' and '.join(self._missing())} split off train by seed {SEED}"

    def _split(self) -> dict[str, Split]:
        whole, wanted = self.parts.get(WHOLE, self.parts.get("train")), self._missing()
        assert whole is not None
        if not wanted:
            return {}
        drawn = np.random.RandomState(SEED)
        chosen: dict[str, list[NDArray[np.int64]]] = {split: [] for split in ("train", *wanted)}
        for label, name in enumerate(self.classes):
            members = drawn.permutation(np.flatnonzero(whole.labels.numpy() == label))
            held = max(1, round(SHARE * len(members)))
            if len(members) <= len(wanted):
                raise DataError(
                    f"{self.path}: expected at least {len(wanted) + 1} images of each class, one per split, got "
                    f"{len(members)} of {name!r}."
                )
            cuts = [len(members) - held * left for left in range(len(wanted), 0, -1)]
            for split, part in zip(chosen, np.split(members, cuts), strict=True):
                chosen[split].append(part)
        return {s: whole.at(torch.from_numpy(np.sort(np.concatenate(parts)))) for s, parts in chosen.items()}


def read_user_images(path: Path, size: int | None = None, fit: Fit = "resize") -> UserImages:
    """Read a folder of classes, with or without splits, or an ``.npz`` of ``images`` and ``labels``."""
    if path.is_dir():
        content = read_folder(path, size, fit)
        return UserImages(path, content.parts, content.classes, content.changed)
    if path.suffix != ".npz":
        raise DataError(
            f"{path}: expected an image folder or an .npz with images and labels, got a {path.suffix} file."
        )
    if is_dataset(path):
        dataset = read_dataset(path, path.stem, "write it again")
        own = UserImages(path, dataset.splits(), dataset.classes, stored=dataset.provenance)
    else:
        whole, classes = _read_arrays(path)
        own = UserImages(path, {WHOLE: whole}, classes)
    height, width = next(iter(own.parts.values())).images.shape[-2:]
    if size is None and height == width:
        return own
    size = common_size([(height, width)], fit) if size is None else size
    parts = {split: replace(part, images=fit_images(part.images, size, fit)) for split, part in own.parts.items()}
    return replace(own, parts=parts, changed=describe_fit({(height, width)}, size, fit))


def _read_arrays(path: Path) -> tuple[Split, tuple[str, ...]]:
    """Return images with labels, and the names of the classes; their numbers if they have no names."""
    try:
        with open_npz(path) as file:
            images, labels = file["images"], file["labels"]
            names = file["classes"] if "classes" in file.files else None
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read ({error or type(error).__name__}); expected an .npz with the arrays images and "
            "labels, without pickled objects: np.savez(path, images=..., labels=...)."
        ) from error
    images = _channels_first(images, path)
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (len(images),):
        raise DataError(
            f"{path}: expected one integer label per image, ({len(images)},), got {labels.dtype} {labels.shape}."
        )
    if names is not None and names.ndim != 1:
        raise DataError(f"{path}: expected classes to be a list of names, got an array of shape {names.shape}.")
    present = np.unique(labels)
    classes = tuple(map(str, present if names is None else names))
    # Without names every number has to occur; with names a class may have no image, which only training refuses.
    whole = names is not None and len(present) and present[0] >= 0 and present[-1] < len(classes)
    if not whole and not np.array_equal(present, np.arange(len(classes))):
        raise DataError(
            f"{path}: expected at least two classes and every label from 0 to {len(classes) - 1} among the labels, got "
            f"{present[:20].tolist()}; renumber them with np.unique(labels, return_inverse=True)."
        )
    return Split(as_tensor(images), as_tensor(labels)), classes


def _channels_first(images: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    grey, coloured = images.ndim == 3, images.ndim == 4
    first, last = coloured and images.shape[1] in (1, 3), coloured and images.shape[-1] in (1, 3)
    if images.dtype != np.uint8 or not (grey or first or last) or 0 in images.shape:
        raise DataError(
            f"{path}: expected uint8 images (n, height, width), (n, channels, height, width) or (n, height, width, "
            f"channels) with 1 or 3 channels, got {images.dtype} {images.shape}."
        )
    if grey:
        return images[:, None]
    return images if first else images.transpose(0, 3, 1, 2)
