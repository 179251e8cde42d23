"""Image folders: one subfolder of images per class, or such folders to train, validate and test on."""

from __future__ import annotations

from pathlib import Path

import torch

from coattend.data.images import list_images
from coattend.data.listing import Files, Listing, folders, split_folders
from coattend.data.streaming import DataError


def list_class_folders(path: Path) -> Listing:
    """List the images of every class, sorted by class, then by path."""
    tops = split_folders(path)
    classes = sorted({child.name for top in tops.values() for child in folders(top)})
    parts = {}
    for split, top in tops.items():
        labelled = [(file, label) for label, name in enumerate(classes) for file in list_images(top / name)]
        labels = torch.tensor([label for _, label in labelled], dtype=torch.int64)
        parts[split] = Files(tuple(file for file, _ in labelled), labels)
    if not any(part.images for part in parts.values()):
        raise DataError(f"{path}: expected a subfolder of images per class, at least two, got no images in any.")
    return Listing(path, "classification", tuple(classes), parts)
