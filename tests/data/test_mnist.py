from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from coattend.data import DataError, Dataset, load_data, mnist
from tests.data import fakes


def check(data: Dataset) -> None:
    images, labels = fakes.digits("train")
    assert [len(part) for part in data.splits().values()] == [50, 10, 20]
    assert np.array_equal(data.train_and_valid().images.numpy()[:, 0], images)
    assert np.array_equal(data.train_and_valid().labels.numpy(), labels)
    assert np.array_equal(data.test.images.numpy()[:, 0], fakes.digits("test")[0])
    assert data.provenance.startswith("original")


@pytest.mark.parametrize("sub", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_in_the_folder_are_read_and_kept(folder: Path, sub: str, packed: bool) -> None:
    fakes.write_idx(folder / sub, packed=packed)
    check(load_data("mnist"))
    for path in (folder / sub).glob("*ubyte*"):
        path.unlink()
    check(load_data("mnist"))  # from what was kept


def test_csv_files_and_the_wheel_are_read(folder: Path) -> None:
    fakes.write_wheel(folder / mnist.WHEEL)
    check(load_data("mnist"))
    (folder / mnist.WHEEL).unlink()
    (folder / "mnist" / "original.npz").unlink()
    for half, name in mnist.CSV_NAMES.items():
        (folder / name).write_bytes(fakes.csv_text(half))
    check(load_data("mnist"))


def refused(folder: Path, message: str) -> None:
    """Refused with a message, the user's files untouched, and nothing kept that would look whole."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=message):
        load_data("mnist")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_truncated_files_are_refused(folder: Path) -> None:
    fakes.write_idx(folder)
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    refused(folder, "train-images-idx3-ubyte.gz cannot be unpacked")
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-784]))
    refused(folder, "truncated or not MNIST")
    path.write_bytes(gzip.compress(b"\x00\x00\x08"))
    refused(folder, "expected an idx file")
    path.unlink()
    refused(folder, "of MNIST's four files")


def test_a_flipped_bit_a_wrong_label_and_swapped_files_are_refused(folder: Path) -> None:
    fakes.write_idx(folder, packed=False)
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:5000] + bytes((whole[5000] ^ 1,)) + whole[5001:])
    refused(folder, "the train images are not MNIST's: sha256")
    images.write_bytes(whole)
    right = labels.read_bytes()
    labels.write_bytes(right[:-1] + b"\x00")
    refused(folder, "the train labels are not MNIST's: sha256")
    labels.write_bytes(whole)
    refused(folder, "expected an idx file of bytes with 1 axes")
    labels.write_bytes((folder / "t10k-labels-idx1-ubyte").read_bytes())
    refused(folder, "expected 60 train images")


def test_a_wheel_of_another_shape_is_refused(folder: Path) -> None:
    fakes.write_wheel(folder / mnist.WHEEL)
    good = fakes.csv_text

    def wheel(text: bytes) -> None:
        fakes.csv_text = lambda half: text  # type: ignore[assignment]
        try:
            fakes.write_wheel(folder / mnist.WHEEL)
        finally:
            fakes.csv_text = good

    wheel(b"label,a\n1,2\n")
    refused(folder, "expected a CSV of 785 columns .* got rows of 2 numbers")
    wheel(b"label,...\n" + b",".join([b"300"] * 785) + b"\n")
    refused(folder, "expected a CSV of 785 columns of bytes 0..255 .* got could not convert string '300'")
    wheel(b"label,...\n" + b",".join([b"x"] * 785) + b"\n")
    refused(folder, "expected a CSV of 785 columns of bytes 0..255 .* got could not convert string 'x'")
    import zipfile

    with zipfile.ZipFile(folder / mnist.WHEEL, "w") as other:
        other.writestr("other/data.csv", "1,2")
    refused(folder, "it is another package")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08\x03",
        b"\0\0\x08\x03\0\0",
        b"\0\0\x08\x03" + b"\xff" * 12,
        b"\0\0\x08\x03" + b"\xff" * 8 + bytes(5),
    ],
)
def test_an_idx_file_with_a_wrong_header_is_refused(folder: Path, content: bytes) -> None:
    fakes.write_idx(folder, packed=False)
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    refused(folder, "expected an idx file of bytes with 3 axes")
