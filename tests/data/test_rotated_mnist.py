from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, Dataset, Split, fetch, load_data, rotated_mnist
from coattend.data.rotation import rotate
from tests.data import fakes


def pool() -> Split:
    images, labels = fakes.digits("train")
    return Split(torch.from_numpy(images[:, None]), torch.from_numpy(labels).long())


def all_images(data: Dataset) -> fakes.Bytes:
    return torch.cat([part.images for part in data.splits().values()]).numpy()[:, 0]


def test_generation_is_disjoint_complete_and_repeatable() -> None:
    sizes = (30, 10, 20)
    data = rotated_mnist.generate(pool(), sizes, seed=5)
    assert tuple(map(len, data.splits().values())) == sizes
    assert data.provenance == "generated from MNIST (seed 5, version 2)"
    again, other = (rotated_mnist.generate(pool(), sizes, seed=seed) for seed in (5, 6))
    for name, part in data.splits().items():
        assert torch.equal(part.images, again.splits()[name].images)
        assert not torch.equal(part.images, other.splits()[name].images)
    labels = torch.cat([part.labels for part in data.splits().values()])
    assert labels.bincount().tolist() == [6] * 10  # all 60 of the pool, none twice
    with pytest.raises(ValueError, match="expected at least 61 images"):
        rotated_mnist.generate(pool(), (30, 10, 21), seed=0)


def test_each_digit_is_an_original_turned_once_by_a_uniform_angle() -> None:
    """The angles and places are drawn as documented: a permutation, then uniform angles, of the frozen generator."""
    data = rotated_mnist.generate(pool(), (40, 10, 10), seed=7)
    drawn = np.random.RandomState(7)
    chosen, degrees = drawn.permutation(60), drawn.uniform(0, 360, 60)
    expected = rotate(fakes.digits("train")[0][chosen], degrees)
    assert np.array_equal(all_images(data), expected.swapaxes(1, 2))
    former = rotated_mnist.generate(pool(), (40, 10, 10), seed=7, version=1)
    assert former.provenance == "generated from MNIST (seed 7)"
    assert np.array_equal(all_images(former), expected)
    assert torch.equal(former.test.labels, data.test.labels)


def test_values_of_a_row_are_read_row_by_row(folder: Path) -> None:
    """A step of one value is a step to the right, a step of 28 one downward."""
    values = np.zeros((rotated_mnist.TEST, 785))
    values[:, [1, 2 * 28]] = 1, 0.4
    for file, count in ((rotated_mnist.TRAINING_FILE, 50), (rotated_mnist.TEST_FILE, 30)):
        np.savetxt(folder / file, np.resize(values, (count, 785)), fmt="%.6f")
    image = load_data("rotated-mnist").test.images[0, 0]
    assert image.nonzero().tolist() == [[0, 1], [2, 0]]
    assert (int(image[0, 1]), int(image[2, 0])) == (255, 102)


def test_original_and_generated_digits_have_one_handedness(folder: Path) -> None:
    """The original files hold digits column by column; the same digits and angles give the same images either way."""
    sizes = (rotated_mnist.TRAIN, rotated_mnist.VALID, 10)
    expected = rotated_mnist.generate(pool(), sizes, seed=3)
    upright = all_images(rotated_mnist.generate(pool(), sizes, seed=3, version=1))
    columns = upright.transpose(0, 2, 1).reshape(60, 784) / 255
    rows = np.concatenate([columns, np.zeros((60, 1))], axis=1)
    np.savetxt(folder / rotated_mnist.TRAINING_FILE, rows[:50], fmt="%.6f")
    np.savetxt(folder / rotated_mnist.TEST_FILE, np.resize(rows[50:], (30, 785)), fmt="%.6f")
    data = load_data("rotated-mnist")
    assert torch.equal(data.train.images, expected.train.images)
    assert torch.equal(data.test.images[:10], expected.test.images)
    assert not np.array_equal(all_images(expected), upright)


def test_a_file_of_version_1_is_recognized_and_not_mixed_with_version_2(folder: Path) -> None:
    fakes.write_idx(folder)
    fetch("rotated-mnist-v1")
    former = load_data("rotated-mnist-v1")
    path = folder / "rotated-mnist" / "generated.npz"  # where earlier releases stored it, under the name rotated-mnist
    content = path.read_bytes()
    with pytest.raises(DataError, match=r"fetch rotated-mnist`.*generated.npz holds version 1 .* as rotated-mnist-v1"):
        load_data("rotated-mnist")
    assert fetch("rotated-mnist") == folder / "rotated-mnist" / "generated-v2.npz"
    data = load_data("rotated-mnist")
    assert data.provenance == "generated from MNIST (seed 2020, version 2)"
    assert former.provenance == "generated from MNIST (seed 2020)"
    assert np.array_equal(all_images(former), all_images(data).swapaxes(1, 2))
    assert path.read_bytes() == content
    path.unlink()
    with pytest.raises(DataError, match="rotated-mnist-v1 is not in .*; run `coattend data fetch rotated-mnist-v1`"):
        load_data("rotated-mnist-v1")


def test_recorded_names_and_mirror_images() -> None:
    former, present = "generated from MNIST (seed 2020)", "generated from MNIST (seed 2020, version 2)"
    names = {
        ("rotated-mnist", former): "rotated-mnist-v1",
        ("rotated-mnist", f"{former}, resize to 20 x 20"): "rotated-mnist-v1",
        ("rotated-mnist", present): "rotated-mnist",
        ("rotated-mnist", "original (mnist_rotation_new.zip)"): "rotated-mnist",
        ("mini", former): "mini",
    }
    assert {key: rotated_mnist.current_name(*key) for key in names} == names
    for name in ("mini", "mnist", "rotated-mnist-v1"):
        assert rotated_mnist.are_mirrored(name, "rotated-mnist")
        assert rotated_mnist.are_mirrored("rotated-mnist", name)
        assert not rotated_mnist.are_mirrored(name, "rotated-mnist-v1")
    for name in ("rotated-mnist", "cifar10", "my/images", None):
        assert not rotated_mnist.are_mirrored("rotated-mnist", name)


@pytest.mark.parametrize("sub", ["", "rotated-mnist", "mnist_rotation_new"])
def test_original_files_are_read(folder: Path, sub: str) -> None:
    fakes.write_amat(folder / sub)
    for _ in range(2):  # parsed, then from what was kept
        data = load_data("rotated-mnist")
        images, labels = fakes.digits("train")
        assert np.array_equal(data.train_and_valid().images.numpy()[:, 0], images[:50])
        assert np.array_equal(data.test.labels.numpy(), labels[:30])
        assert [len(part) for part in data.splits().values()] == [40, 10, 30]
        assert data.provenance.startswith("original")


def write_zip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fakes.write_amat(folder)
    path = folder / rotated_mnist.ARCHIVE
    with zipfile.ZipFile(path, "w") as archive:
        for name in (rotated_mnist.TRAINING_FILE, rotated_mnist.TEST_FILE):
            archive.write(folder / name, name)
            (folder / name).unlink()
    monkeypatch.setattr(rotated_mnist, "ARCHIVE_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


def test_the_archive_is_read_and_its_checksum_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(folder, monkeypatch)
    assert load_data("rotated-mnist").provenance == "original (mnist_rotation_new.zip)"
    (folder / "rotated-mnist" / "original.npz").unlink()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("added", "1")
    with pytest.raises(DataError, match="is not the published archive: md5"):
        load_data("rotated-mnist")
    assert path.exists()


def test_original_files_take_precedence_over_generated_ones(folder: Path) -> None:
    from coattend.data.store import save_dataset

    save_dataset(rotated_mnist.generate(pool(), (40, 10, 10), 1), folder / "rotated-mnist" / "generated-v2.npz")
    assert load_data("rotated-mnist").provenance.startswith("generated from MNIST (seed 1, version 2)")
    fakes.write_amat(folder)
    assert load_data("rotated-mnist").provenance.startswith("original")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: text.rindex(b"\n", 0, -1) + 1], "expected 50 rows of 785 numbers, got 49 of 785"),
        (lambda text: text[: len(text) - 900], "expected rows of 785 numbers"),
        (lambda text: text.replace(b" 3.000000\n", b" 3.500000\n"), "expected labels 0..9 in the last column"),
        (lambda text: text.replace(b" 9.000000\n", b" 10.00000\n"), "expected labels 0..9 in the last column"),
        (lambda text: text.replace(b"0.000000", b"1.500000", 1), "expected grey values from 0 to 1"),
        (lambda text: text.replace(b"0.000000", b"nan", 1), "expected grey values from 0 to 1"),
        (lambda text: text.replace(b"0.000000", b"zero", 1), "expected rows of 785 numbers"),
        (
            lambda text: b"\n".join(row[9:] for row in text.splitlines()),
            "expected rows of 785 numbers, got rows of 784 numbers",
        ),
    ],
)
def test_damaged_original_files_are_refused(folder: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    fakes.write_amat(folder)
    path = folder / rotated_mnist.TRAINING_FILE
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        load_data("rotated-mnist")
    assert not (folder / "rotated-mnist").exists()


def test_one_of_the_two_files_is_not_enough(folder: Path) -> None:
    fakes.write_amat(folder)
    (folder / rotated_mnist.TEST_FILE).unlink()
    with pytest.raises(DataError, match="holds mnist_all_rotation_normalized_float_train_valid.amat alone"):
        load_data("rotated-mnist")


def test_an_altered_archive_is_not_unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("unpacked")

    (folder / rotated_mnist.ARCHIVE).write_bytes(b"PK something")
    monkeypatch.setattr(rotated_mnist, "read_members", never)
    with pytest.raises(DataError, match="is not the published archive: md5"):
        load_data("rotated-mnist")
    with open(folder / rotated_mnist.ARCHIVE, "wb") as file:
        file.truncate(6 << 30)  # nothing of it is on the disk
    with pytest.raises(DataError, match=r"it has 6,442,450,944 bytes, more than the 134,217,728"):
        load_data("rotated-mnist")


def test_a_file_without_lines_is_not_read_to_its_end(folder: Path) -> None:
    fakes.write_amat(folder)
    with open(folder / rotated_mnist.TRAINING_FILE, "wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(DataError, match="expected rows of 785 numbers, got a line of 25,120 bytes or more"):
        load_data("rotated-mnist")
    (folder / rotated_mnist.TRAINING_FILE).write_bytes(b"")
    with pytest.raises(DataError, match="expected rows of 785 numbers, got no rows"):
        load_data("rotated-mnist")
