"""The user's own images: folders, tables and ``.npz`` files, with given splits or splits by a fixed seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from coattend.data.dataset import AnySplit, DataError, Dataset, Split, concatenate
from coattend.data.fitting import Fit, common_size, describe_fit, fit_images
from coattend.data.image_folder import list_class_folders
from coattend.data.listing import WHOLE
from coattend.data.masks import fit_mask, has_masks, list_mask_folders
from coattend.data.npz import read_npz
from coattend.data.reading import BadFiles, Keep, read_listing
from coattend.data.splitting import SEED, check_groups, split_by_class, split_by_group
from coattend.data.store import SPLITS, is_dataset, read_dataset, sha256
from coattend.data.table import SUFFIXES as TABLES
from coattend.data.table import list_table


@dataclass(frozen=True)
class UserImages:
    """Images as read, before splitting; ``changed`` describes new sizes, ``stored`` is the provenance in the file.

    ``groups`` are those of the images of each part, ``skipped`` the files that were left out and why.
    """

    path: Path
    parts: dict[str, AnySplit]
    classes: tuple[str, ...]
    changed: str = ""
    stored: str | None = None
    task: str = "classification"
    groups: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()

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
        if len(self.classes) < 2 and self.task in ("classification", "segmentation"):
            raise DataError(
                f"{self.path}: expected at least two classes, got {list(self.classes)}; give each class a folder of "
                "images, or its own number in an .npz."
            )
        if not {WHOLE, "train"} & set(self.parts):
            raise DataError(f"{self.path} has images in {' and '.join(self.parts)} only; expected train as well.")
        for split, part in self.parts.items():
            self._check_classes(split, part)
        if WHOLE not in self.parts:
            check_groups(self.path, self.groups)
        splits = {**self.parts, **self._split()}
        splits = {split: splits[split] for split in SPLITS}
        return Dataset(
            self.name,
            **splits,
            classes=self.classes,
            provenance=self.provenance,
            task=self.task,
            skipped=self.skipped,
        )

    def _check_classes(self, split: str, part: AnySplit) -> None:
        """Raise if a class has no image in a split."""
        if self.task not in ("classification", "multi-label"):
            return
        counts = part.labels.bincount(minlength=len(self.classes)) if part.labels.ndim == 1 else part.labels.sum(0)
        if 0 in counts.tolist():
            where = "" if split == WHOLE else f" in the {split} split"
            raise DataError(
                f"{self.path}: expected images of the class {self.classes[counts.tolist().index(0)]!r}{where}, got "
                "none; add some or remove it."
            )

    def to_test(self) -> tuple[AnySplit, str]:
        """Return images to test a network on that was trained on others, the test split or else all, and provenance."""
        if "test" in self.parts:
            return self.parts["test"], self._describe("test split")
        return concatenate(list(self.parts.values())), self._describe("all images")

    def _describe(self, which: str) -> str:
        if self.stored is not None:
            return ", ".join(filter(None, (self.stored, self.changed)))
        digests = []
        for part in self.parts.values():
            if isinstance(part, Split):
                digests += [sha256(x.numpy()) for x in (part.images, part.labels)]
            else:
                digest = hashlib.sha256()
                part.feed(digest)
                digests.append(digest.hexdigest())
        facts = (which, self.changed, sha256(np.array(digests))[:12])
        return f"own images {self.path.name} ({', '.join(filter(None, facts))})"

    def _missing(self) -> list[str]:
        return [split for split in ("valid", "test") if split not in self.parts]

    def _splitting(self) -> str:
        kind = "" if self._groups() is None else " without dividing groups"
        if WHOLE in self.parts:
            return f"split 80/10/10 by seed {SEED}{kind}"
        if not self._missing():
            return "splits as given"
        return f"{' and '.join(self._missing())} split off train by seed {SEED}{kind}"

    def _groups(self) -> tuple[str, ...] | None:
        return self.groups.get(WHOLE, self.groups.get("train"))

    def _split(self) -> dict[str, AnySplit]:
        whole, wanted = self.parts.get(WHOLE, self.parts.get("train")), self._missing()
        assert whole is not None
        if not wanted:
            return {}
        by_class = self.task == "classification"
        labels = whole.labels.numpy() if by_class else np.zeros(len(whole), dtype=np.int64)
        classes = self.classes if by_class else ("all",)
        groups = self._groups()
        if groups is None:
            chosen = split_by_class(self.path, labels, classes, wanted)
        else:
            chosen = split_by_group(self.path, labels, classes, groups, wanted)
        return {split: whole.at(torch.from_numpy(indices)) for split, indices in chosen.items()}


def read_user_images(
    path: Path,
    size: int | None = None,
    fit: Fit = "resize",
    *,
    keep: Keep = "auto",
    bad_files: BadFiles = "stop",
    group: str | None = None,
) -> UserImages:
    """Read a folder of classes, or of images and masks, with or without splits; a table; or an ``.npz``."""
    if path.is_dir() or path.suffix.lower() in TABLES:
        if path.is_dir():
            listing = list_mask_folders(path) if has_masks(path) else list_class_folders(path)
        else:
            listing = list_table(path, group)
        read = read_listing(listing, size, fit, keep, bad_files)
        return UserImages(path, read.parts, read.classes, read.changed, None, listing.task, read.groups, read.skipped)
    if path.suffix != ".npz":
        raise DataError(
            f"{path}: expected an image folder, an .npz with images and labels, or a table (.csv, .parquet), got a "
            f"{path.suffix} file."
        )
    if is_dataset(path):
        dataset = read_dataset(path, path.stem, "write it again")
        own = UserImages(path, dataset.splits(), dataset.classes, stored=dataset.provenance, task=dataset.task)
    else:
        content = read_npz(path)
        own = UserImages(path, dict(content.parts), content.classes, task=content.task, groups=content.groups)
    _, height, width = next(iter(own.parts.values())).image_shape
    if size is None and height == width:
        return own
    size = common_size([(height, width)], fit) if size is None else size
    parts: dict[str, AnySplit] = {
        split: _fitted(part.in_memory(), len(own.classes), size, fit) for split, part in own.parts.items()
    }
    return replace(own, parts=parts, changed=describe_fit({(height, width)}, size, fit))


def _fitted(part: Split, classes: int, size: int, fit: Fit) -> Split:
    labels = part.labels
    if labels.ndim == 3:
        labels = torch.stack([fit_mask(mask, classes, size, fit) for mask in labels])
    return Split(fit_images(part.images, size, fit), labels, part.names)
