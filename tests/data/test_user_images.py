from __future__ import annotations

import builtins
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, load_data
from coattend.data.catalog import load_held_out
from coattend.data.fitting import Fit, common_size, fit_images

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


@pytest.mark.parametrize("name", ["val", "validation", "Valid"])
def test_a_validation_folder_may_have_its_usual_names(tmp_path: Path, name: str) -> None:
    for split, count in (("train", 5), (name, 2)):
        for label in ("a", "b"):
            for i in range(count):
                write(tmp_path / "own" / split / label / f"{i}.png", image(i))
    data = load_data(tmp_path / "own")
    assert data.classes == ("a", "b")
    assert [len(part) for part in data.splits().values()] == [8, 4, 2]  # the test images come out of train
    assert "own images own (test split off train by seed 0, " in data.provenance
    assert data.valid.names == tuple(str(tmp_path / "own" / name / c / f"{i}.png") for c in "ab" for i in range(2))
    shown = {name for part in data.splits().values() for name in part.names or ()}
    assert len(shown) == 14


def test_validation_images_are_split_off_where_only_training_and_test_are_given(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("test", 3)):
        for label in ("a", "b"):
            for i in range(count):
                write(tmp_path / "own" / split / label / f"{i}.png", image(i))
    data = load_data(tmp_path / "own")
    assert [part.labels.bincount().tolist() for part in data.splits().values()] == [[18, 18], [2, 2], [3, 3]]
    write(tmp_path / "own" / "c" / "0.png", image(0))
    with pytest.raises(DataError, match="has test, train next to c; expected either"):
        load_data(tmp_path / "own")
    (tmp_path / "own" / "c").rename(tmp_path / "own" / "val")
    (tmp_path / "own" / "valid").mkdir()
    write(tmp_path / "own" / "valid" / "a" / "0.png", image(0))
    with pytest.raises(DataError, match="expected images of the class|has both val and valid"):
        load_data(tmp_path / "own")


def test_folders_of_splits_are_never_classes(tmp_path: Path) -> None:
    for split in ("val", "test"):
        for i in range(5):
            write(tmp_path / "own" / split / "a" / f"{i}.png", image(i))
            write(tmp_path / "own" / split / "b" / f"{i}.png", image(i))
    with pytest.raises(DataError, match="has images in valid and test only; expected train as well"):
        load_data(tmp_path / "own")


def test_images_of_different_sizes_are_given_a_common_one(classes: Path) -> None:
    write(classes / "cat" / "wide.png", image(1, (30, 50, 3)))
    data = load_data(classes)
    assert data.image_shape == (3, 20, 20)
    assert "scaled from sides of 20 to 50 pixels to 20 x 20" in data.provenance
    assert load_data(classes).provenance == data.provenance
    whole = {name: x for part in data.splits().values() for name, x in zip(part.names or (), part.images, strict=True)}
    assert torch.equal(whole[str(classes / "cat" / "00.png")], torch.from_numpy(image(0).transpose(2, 0, 1)))
    wide = torch.from_numpy(image(1, (30, 50, 3)).transpose(2, 0, 1))
    assert torch.equal(whole[str(classes / "cat" / "wide.png")], fit_images(wide[None], 20, "resize")[0])
    assert load_data(classes, size=16).image_shape == (3, 16, 16)
    assert load_data(classes, size=15, fit="crop").image_shape == (3, 15, 15)
    assert load_data(classes, fit="crop").image_shape == (3, 20, 20)
    with pytest.raises(DataError, match="30 of 31 images cannot be used:\n.*00.png: cannot crop 25 x 25"):
        load_data(classes, size=25, fit="crop")


@pytest.mark.parametrize(
    ("shapes", "fit", "size"),
    [
        ([(41, 90), (90, 50), (70, 63)], "resize", 48),  # the median of 41, 50, 63 is 50
        ([(41, 90), (90, 50), (70, 63)], "crop", 40),
        ([(30, 40)], "resize", 28),
        ([(3000, 4000), (4000, 3000)], "resize", 128),
        ([(5, 7)], "resize", 5),
    ],
)
def test_the_common_size_follows_the_shorter_sides(shapes: list[tuple[int, int]], fit: Fit, size: int) -> None:
    assert common_size(shapes, fit) == size


def test_every_bad_file_is_in_one_message(classes: Path) -> None:
    (classes / "cat" / "00.png").write_bytes(b"<html>")
    (classes / "dog" / "cut.png").write_bytes((classes / "cat" / "01.png").read_bytes()[:300])
    write(classes / "dog" / "deep.png", np.zeros((20, 20), dtype=np.uint16))
    with pytest.raises(DataError) as caught:
        load_data(classes)
    message = str(caught.value)
    assert "3 of 32 images cannot be used:" in message
    bad = [classes / "cat" / "00.png", classes / "dog" / "cut.png", classes / "dog" / "deep.png"]
    assert all(line.strip().startswith(str(path)) for line, path in zip(message.splitlines()[1:], bad, strict=True))
    for i in range(60):
        (classes / "dog" / f"bad{i}.png").write_bytes(b"")
    with pytest.raises(DataError, match="63 of 92 images cannot be used:(.|\n)*and 13 more"):
        load_data(classes)


def test_small_files_do_not_decide_how_much_memory_is_taken(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coattend.data.reading.UNPACKED", 10_000)
    assert load_data(classes).image_shape == (3, 20, 20)  # random pixels fill their files
    for path in classes.rglob("*.[pP][nN][gG]"):
        write(path, np.zeros((200, 200, 3), np.uint8), optimize=True)
    with pytest.raises(DataError, match="30 images of 200 x 200 pixels take 3,600,000 bytes .* choose a smaller size"):
        load_data(classes)
    assert load_data(classes, size=30).image_shape == (3, 30, 30)


def test_a_summary_says_what_was_read(classes: Path) -> None:
    counts = "own: 24 / 3 / 3 images 3 x 20 x 20 to train, validate and test, 2 classes (cat, dog); own images own ("
    assert load_data(classes).summary().startswith(counts)


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
    with pytest.raises(DataError, match="expected 8 bits per channel as in most of the images, got 16 bits"):
        load_data(classes)
    path.write_bytes(whole)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    with pytest.raises(DataError, match="more than the 300 pixels that are read at once; cut it into tiles"):
        load_data(classes)


def test_too_few_classes_or_images(classes: Path, tmp_path: Path) -> None:
    (classes / "bird").mkdir()
    with pytest.raises(DataError, match="expected images of the class 'bird', got none"):
        load_data(classes)
    write(classes / "bird" / "1.png", image(0))
    with pytest.raises(DataError, match="expected at least 3 images of each class, one per split, got 1 of 'bird'"):
        load_data(classes)
    with pytest.raises(DataError, match="expected a subfolder of images per class, at least two, got"):
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


def test_oblong_images_of_an_npz_are_made_square(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", images=image(0, (30, 30, 41)), labels=np.arange(30) % 3)
    data = load_data(tmp_path / "own.npz")
    assert data.image_shape == (1, 28, 28)
    assert "scaled from sides of 30 to 41 pixels to 28 x 28" in data.provenance


GOOD = {"images": np.zeros((9, 8, 8), np.uint8), "labels": np.arange(9) % 3}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GOOD["images"]}, "expected an .npz with the arrays images and labels"),
        ({**GOOD, "labels": np.arange(8)}, r"one integer label per image, \(9,\), got int64 \(8,\)"),
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
        ({"images": GOOD["images"][:0], "labels": GOOD["labels"][:0]}, r"expected uint8 images .* got uint8 \(0, "),
        ({**GOOD, "images": np.zeros((9, 8, 8))}, "expected uint8 images .* got float64"),
        ({**GOOD, "images": np.zeros((9, 8, 8, 8), np.uint8)}, r"a few more channels, got uint8 \(9, 8, 8, 8\)"),
        ({**GOOD, "images": np.zeros((9, 0, 8), np.uint8)}, r"got uint8 \(9, 0, 8\)"),
        ({**GOOD, "images": np.uint8(3)}, r"expected uint8 images .* got uint8 \(\)"),
        ({**GOOD, "labels": np.int64(3)}, r"one integer label per image, \(9,\), got int64 \(\)"),
        ({**GOOD, "classes": np.array("a")}, r"classes to be a list of names, got an array of shape \(\)"),
        ({**GOOD, "classes": ["a", "b", "c", "d"]}, "expected images of the class 'd', got none"),
        ({**GOOD, "images": np.array([object()] * 9)}, "without pickled objects"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(tmp_path / "own.npz")


def test_an_npz_without_images_is_nothing_to_test_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **{**GOOD, "images": GOOD["images"][:0], "labels": GOOD["labels"][:0]})
    with pytest.raises(DataError, match=r"expected uint8 images .* got uint8 \(0, "):
        load_held_out(tmp_path / "own.npz", "elsewhere", size=8)


def test_an_npz_that_is_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(pickle.dumps({"images": 1}))
    with pytest.raises(DataError, match="cannot be read"):
        load_data(tmp_path / "own.npz")
