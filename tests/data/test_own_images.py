from __future__ import annotations

import builtins
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, load_data

Image = pytest.importorskip("PIL.Image")


def image(seed: int, shape: tuple[int, ...] = (20, 20, 3)) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


def write(path: Path, pixels: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Two classes of 20 and 10 colour images."""
    for i in range(20):
        write(tmp_path / "own" / "cat" / f"{i:02}.png", image(i))
    for i in range(10):
        write(tmp_path / "own" / "dog" / "deeper" / f"{i:02}.PNG", image(100 + i))
    (tmp_path / "own" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "own" / ".hidden").mkdir()
    return tmp_path / "own"


def test_a_folder_is_split_by_class_without_overlap_and_repeatably(classes: Path) -> None:
    data = load_data(classes)
    assert data.classes == ("cat", "dog")
    assert [part.labels.bincount().tolist() for part in data.splits().values()] == [[16, 8], [2, 1], [2, 1]]
    everything = [x.numpy().tobytes() for part in data.splits().values() for x in part.images]
    assert set(everything) == {image(i).transpose(2, 0, 1).tobytes() for i in [*range(20), *range(100, 110)]}
    again = load_data(str(classes))
    assert torch.equal(again.train.images, data.train.images)
    assert again.provenance == data.provenance
    assert data.provenance.startswith("own images own (split 80/10/10 by seed 0, ")


def test_given_splits_are_kept(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("valid", 2), ("test", 3)):
        for name in ("a", "b"):
            for i in range(count):
                write(tmp_path / "own" / split / name / f"{i}.png", image(i))
    data = load_data(tmp_path / "own")
    assert [len(part) for part in data.splits().values()] == [8, 4, 6]
    assert "splits as given" in data.provenance
    (tmp_path / "own" / "valid").rename(tmp_path / "own" / "validation")
    with pytest.raises(DataError, match="expected train, valid and test, add valid"):
        load_data(tmp_path / "own")


def test_size_makes_different_images_equal_and_its_lack_is_an_error(classes: Path) -> None:
    write(classes / "cat" / "wide.png", image(1, (30, 50, 3)))
    with pytest.raises(DataError, match=r"wide.png: expected square images of one size, got \(30, 50\).*pass size="):
        load_data(classes)
    assert load_data(classes, size=16).image_shape == (3, 16, 16)
    assert load_data(classes, size=15, fit="crop").image_shape == (3, 15, 15)
    with pytest.raises(DataError, match="cannot crop 25 x 25"):
        load_data(classes, size=25, fit="crop")


def test_grey_stays_grey_and_becomes_colour_among_colours(tmp_path: Path, classes: Path) -> None:
    for name in ("a", "b"):
        for i in range(3):
            write(tmp_path / "grey" / name / f"{i}.png", image(i, (8, 8)))
    assert load_data(tmp_path / "grey").image_shape == (1, 8, 8)
    write(classes / "cat" / "grey.png", image(7, (20, 20)))
    data = load_data(classes)
    assert data.image_shape == (3, 20, 20)
    grey = torch.from_numpy(image(7, (20, 20))).expand(3, 20, 20)
    assert any(torch.equal(x, grey) for part in data.splits().values() for x in part.images)


def test_a_camera_s_orientation_is_followed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter, clockwise, to see it upright
    for name in ("a", "b"):
        for i in range(3):
            write(tmp_path / "own" / name / f"{i}.png", image(0), exif=exif)
    expected = np.rot90(image(0), -1).transpose(2, 0, 1)
    assert np.array_equal(load_data(tmp_path / "own").train.images[0].numpy(), expected)


def test_unreadable_deep_and_enormous_images_are_refused(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = classes / "cat" / "00.png"
    whole = path.read_bytes()
    for content in (whole[:200], b"", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="00.png cannot be read as an image"):
            load_data(classes)
    write(path, np.zeros((20, 20), dtype=np.uint16))
    with pytest.raises(DataError, match="expected 8 bits per channel, got Pillow's mode 'I;16'"):
        load_data(classes)
    path.write_bytes(whole)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    with pytest.raises(DataError, match="cannot be read as an image"):
        load_data(classes)


def test_too_few_classes_or_images(classes: Path, tmp_path: Path) -> None:
    (classes / "bird").mkdir()
    with pytest.raises(DataError, match="expected images of the class 'bird', got none"):
        load_data(classes)
    write(classes / "bird" / "1.png", image(0))
    with pytest.raises(DataError, match="expected at least 3 images of each class, one per split, got 1 of 'bird'"):
        load_data(classes)
    with pytest.raises(DataError, match="expected a sub-folder of images per class, at least two, got"):
        load_data(classes / "cat")


def test_without_pillow_the_message_says_how_to_get_it(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pillow(name: str, *rest: object) -> object:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(DataError, match="needs Pillow; run `pip install"):
        load_data(classes)


@pytest.mark.parametrize("shape", [(30, 8, 8), (30, 1, 8, 8), (30, 8, 8, 1), (30, 3, 8, 8), (30, 8, 8, 3)])
def test_an_npz_is_read_in_every_common_layout(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images, labels = image(0, shape), np.arange(30, dtype=np.int32) % 3
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    data = load_data(tmp_path / "own.npz")
    assert data.image_shape == (3 if 3 in shape else 1, 8, 8)
    assert [len(part) for part in data.splits().values()] == [24, 3, 3]
    assert data.classes == ("0", "1", "2")
    np.savez(tmp_path / "own.npz", images=images, labels=labels, classes=["x", "y", "z"])
    assert load_data(tmp_path / "own.npz", size=4).classes == ("x", "y", "z")


GOOD = {"images": np.zeros((9, 8, 8), np.uint8), "labels": np.arange(9) % 3}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GOOD["images"]}, "expected an .npz with the arrays images and labels"),
        ({**GOOD, "labels": np.arange(8)}, r"one whole-number label per image, \(9,\), got int64 \(8,\)"),
        ({**GOOD, "labels": np.zeros(9)}, "got float64"),
        (
            {**GOOD, "labels": np.arange(9) % 3 + 1},
            r"every label from 0 to 2 among the labels, got \[1, 2, 3\]; renumber",
        ),
        ({**GOOD, "labels": np.arange(9) % 3 - 1}, r"got \[-1, 0, 1\]"),
        (
            {**GOOD, "labels": np.arange(9) % 3, "classes": ["a", "b"]},
            r"label from 0 to 1 among the labels, got \[0, 1, 2\]",
        ),
        ({"images": GOOD["images"][:0], "labels": GOOD["labels"][:0]}, "at least two classes"),
        ({**GOOD, "images": np.zeros((9, 8, 8))}, "expected uint8 images .* got float64"),
        ({**GOOD, "images": np.zeros((9, 5, 8, 8), np.uint8)}, r"with 1 or 3 channels, got uint8 \(9, 5, 8, 8\)"),
        ({**GOOD, "images": np.zeros((9, 8, 9), np.uint8)}, "expected square images"),
        ({**GOOD, "images": np.array([object()] * 9)}, "without pickled objects"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(tmp_path / "own.npz")


def test_an_npz_that_is_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(pickle.dumps({"images": 1}))
    with pytest.raises(DataError, match="cannot be read"):
        load_data(tmp_path / "own.npz")
