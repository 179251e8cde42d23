from __future__ import annotations

import pytest
import torch

from coattend.data import DataError, Dataset, Split


def split(count: int, label: int = 0, side: int = 4) -> Split:
    return Split(torch.zeros(count, 1, side, side, dtype=torch.uint8), torch.full((count,), label))


def test_train_and_valid_are_joined_in_order() -> None:
    data = Dataset("d", split(3, 0), split(2, 1), split(1), ("a", "b"), "made")
    joined = data.train_and_valid()
    assert joined.labels.tolist() == [0, 0, 0, 1, 1]
    assert joined.images.shape == (5, 1, 4, 4)
    assert data.image_shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4, dtype=torch.int16), torch.zeros(2, dtype=torch.int64), "expects uint8 images"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"got torch.uint8 \(2, 4, 4\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "one int64 label per image"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.float32), "got torch.float32"),
    ],
)
def test_wrong_shapes_and_types_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Split(images, labels)


def test_a_label_without_a_class_and_splits_of_different_shape_are_refused() -> None:
    with pytest.raises(DataError, match="expected valid labels in 0..1, one per class, got 2..2"):
        Dataset("d", split(3), split(3, label=2), split(3), ("a", "b"), "made")
    with pytest.raises(DataError, match="one shape in all splits"):
        Dataset("d", split(3), split(3), split(3, side=5), ("a", "b"), "made")


def test_splits_that_are_none_are_refused() -> None:
    with pytest.raises(DataError, match="Split expects tensors of images and labels, got NoneType and NoneType"):
        Split(None, None)
    with pytest.raises(DataError, match="nothing: expected train, valid and test to be Splits, got"):
        Dataset("nothing", None, None, None, ("a",), "nowhere")
