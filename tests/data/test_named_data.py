"""Nuclei in the package, radio galaxies and MedMNIST from small files of the same layout."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coattend.data import DataError, fetch, galaxies, load_data, medmnist, nuclei
from tests.data.pictures import noise


def test_nuclei_have_masks_and_the_split_by_seed_0() -> None:
    data = load_data("nuclei-mini")
    assert (data.task, data.classes, data.image_shape) == ("segmentation", nuclei.CLASSES, (1, 88, 88))
    assert tuple(map(len, data.splits().values())) == nuclei.SIZES
    assert nuclei.FILE.stat().st_size <= 1_500_000
    for part in data.splits().values():
        assert (part.labels.flatten(1).sum(1) > 0).all()
        bright = part.images[:, 0].double()
        inside = (bright * part.labels).sum() / part.labels.sum()
        outside = (bright * (1 - part.labels)).sum() / (1 - part.labels.double()).sum()
        assert inside > 3 * outside  # fluorescence


def test_tiles_are_the_windows_with_most_nuclei() -> None:
    images = noise(0, (10, 256, 256, 1)).repeat(3, axis=3)
    labels = np.zeros((10, 256, 256), np.uint16)
    labels[:, 168:250, 42:120] = 7  # inside of the window at row 168, column 42
    data = nuclei.make_tiles(images, labels)
    order = np.random.default_rng(0).permutation(10)
    assert [len(part) for part in data.splits().values()] == [7, 1, 2]
    for tile, mask, number in zip(data.train.images, data.train.labels, order, strict=False):
        assert np.array_equal(tile[0].numpy(), images[number, 168:256, 42:130, 0])
        assert np.array_equal(mask.numpy(), labels[number, 168:256, 42:130] > 0)


def galaxy_archive() -> bytes:
    image = pytest.importorskip("PIL.Image")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for split, count in (("train", 3), ("valid", 2), ("test", 2)):
            for name in galaxies.CLASSES:
                for i in range(count):
                    pixels = io.BytesIO()
                    image.fromarray(noise(i, (300, 300))).save(pixels, format="PNG")
                    archive.writestr(f"galaxy_data/{split}/{name}/{i}.png", pixels.getvalue())
        archive.writestr("galaxy_data/all/FRI/0.png", b"not read")
    return content.getvalue()


@pytest.mark.parametrize("packed", [True, False])
def test_radio_galaxies_are_read_from_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    archive = galaxy_archive()
    monkeypatch.setattr(galaxies, "SHA256", hashlib.sha256(archive).hexdigest())
    if packed:
        with zipfile.ZipFile(tmp_path / galaxies.WHEEL, "w") as wheel:
            wheel.writestr("firstgalaxydata/galaxy_data.zip", archive)
    else:
        (tmp_path / galaxies.ARCHIVE).write_bytes(archive)
    fetch("radio-galaxies", tmp_path)
    data = load_data("radio-galaxies", tmp_path)
    assert [len(part) for part in data.splits().values()] == [12, 8, 8]
    assert data.test.names[0] == "test/Bent/0.png"
    expected = np.rint(255 * np.sqrt(noise(0, (300, 300))[86:214, 86:214] / 255))
    assert np.array_equal(data.train.images[0, 0].numpy(), expected)


def test_other_radio_galaxies_are_refused(tmp_path: Path) -> None:
    (tmp_path / galaxies.ARCHIVE).write_bytes(galaxy_archive())
    with pytest.raises(DataError, match=r"the sha256 of galaxy_data.zip is .*, expected d04a5d45"):
        load_data("radio-galaxies", tmp_path)


def medical(path: Path, labels: int, channels: int) -> str:
    shape = (12, 28, 28, 3) if channels == 3 else (12, 28, 28)
    arrays: dict[str, np.ndarray] = {}
    for seed, split in enumerate(("train", "val", "test")):
        arrays[f"{split}_images"] = noise(seed, shape)
        several = noise(seed, (12, 14), 2)
        arrays[f"{split}_labels"] = several if labels > 10 else np.arange(12)[:, None].astype(np.uint8) % labels
    np.savez(path, **arrays)
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "labels", "channels", "task"),
    [
        ("bloodmnist", 8, 3, "classification"),
        ("breastmnist", 2, 1, "classification"),
        ("chestmnist", 14, 1, "multi-label"),
    ],
)
def test_medmnist_is_verified_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, labels: int, channels: int, task: str
) -> None:
    digest = medical(tmp_path / f"{name}.npz", labels, channels)
    with pytest.raises(DataError, match=f"its md5 is {digest}, expected {medmnist.MEMBERS[name].md5}"):
        load_data(name, tmp_path)
    monkeypatch.setitem(medmnist.MEMBERS, name, replace(medmnist.MEMBERS[name], md5=digest))
    data = load_data(name, tmp_path)
    assert (data.task, data.classes) == (task, medmnist.MEMBERS[name].classes)
    (tmp_path / f"{name}.npz").unlink()
    again = load_data(name, tmp_path)  # as it was stored
    assert again.task == task
    assert again.train.labels.equal(data.train.labels)


def test_an_absent_dataset_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run `coattend data fetch pathmnist`, which also accepts pathmnist.npz"):
        load_data("pathmnist", tmp_path)
