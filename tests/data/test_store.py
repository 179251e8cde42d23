from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, Dataset, Split, data_folder, load_data
from coattend.data.store import read_dataset, read_provenance, save_dataset


def dataset(seed: int = 0) -> Dataset:
    drawn = torch.Generator().manual_seed(seed)
    parts = [
        Split(torch.randint(256, (n, 1, 5, 5), generator=drawn, dtype=torch.uint8), torch.arange(n) % 2)
        for n in (6, 2, 4)
    ]
    return Dataset("d", *parts, classes=("a", "b"), provenance="made here")


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_saved_is_read_back(tmp_path: Path, compressed: bool) -> None:
    saved = dataset()
    save_dataset(saved, tmp_path / "new" / "d.npz", compressed=compressed)
    read = read_dataset(tmp_path / "new" / "d.npz", "d", "make it anew")
    for name, part in saved.splits().items():
        assert torch.equal(read.splits()[name].images, part.images)
        assert torch.equal(read.splits()[name].labels, part.labels)
    assert (read.name, read.classes, read.provenance) == ("d", ("a", "b"), "made here")
    assert read_provenance(tmp_path / "new" / "d.npz") == "made here"
    assert os.listdir(tmp_path / "new") == ["d.npz"]


def test_every_flipped_byte_and_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    save_dataset(dataset(), path)
    whole = path.read_bytes()
    reference = read_dataset(path, "d", "make it anew")
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 0x20,)) + whole[place + 1 :])
        try:
            read = read_dataset(path, "d", "make it anew")
        except DataError:
            continue
        # A flip in the zip's own book-keeping (a time stamp) or in a name may pass; never one in the content.
        for name, part in reference.splits().items():
            assert torch.equal(read.splits()[name].images, part.images)
            assert torch.equal(read.splits()[name].labels, part.labels)
    for length in range(0, len(whole), 301):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="make it anew"):
            read_dataset(path, "d", "make it anew")
    assert read_provenance(path).startswith("damaged")


def test_content_changed_under_valid_zip_checksums_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    save_dataset(dataset(), path)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    arrays["train_labels"][0] ^= 1
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="does not match the sha256"):
        read_dataset(path, "d", "make it anew")


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COATTEND_DATA", "~/chosen")
    assert data_folder() == Path.home() / "chosen"
    monkeypatch.delenv("COATTEND_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "coattend"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "coattend"
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_folder() == Path.home() / "Library" / "Caches" / "coattend"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert data_folder() == tmp_path / "coattend"


def npy(shape: str, dtype: str = "|u1", content: bytes = b"") -> bytes:
    """An array that says it has this shape."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (npy("(1000000000000,)"), r"declares \(1000000000000,\) of uint8 and has \d+ bytes"),
        (npy("(1000000000000,)", "|S0"), "declares"),
        (npy("(99999999999999999999999999,)"), "declares"),
        (npy("(3, 8, 8)", content=bytes(100)), "declares"),
        (b"\x93NUMPY\x01\x00\x01\x00{", "cannot be read"),
        (npy("(" * 5000), "cannot be read"),
        (b"no array", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_what_an_array_says_of_itself_is_checked_first(tmp_path: Path, images: bytes, message: str) -> None:
    labels = io.BytesIO()
    np.save(labels, np.arange(9) % 3)
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels.getvalue())
    with pytest.raises(DataError, match=message):
        load_data(tmp_path / "own.npz")


def test_an_npz_that_unpacks_to_a_thousand_times_its_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as file:
        file.write(npy("(300, 1024, 1024)"))
        for _ in range(300):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="which is not plausible"):
        load_data(path)


def test_a_dataset_of_other_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    save_dataset(dataset(), path)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    np.savez(path, **{**arrays, "classes": np.array("a")})
    with pytest.raises(DataError, match="does not hold the arrays of a dataset"):
        read_dataset(path, "d", "make it again")
