from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, Dataset, from_datasets, load_data
from coattend.data.streaming import BatchReader, StreamedSplit
from tests.data.pictures import class_folders, mask_folders, write

pytest.importorskip("PIL")


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "tiles", {"a": 30, "b": 20})


def test_images_on_disk_are_those_in_memory(tiles: Path) -> None:
    stored, read = load_data(tiles), load_data(tiles, keep="disk")
    assert isinstance(read.train, StreamedSplit)
    assert "read from disk while training" in read.summary()
    for mine, other in zip(read.in_memory().splits().values(), stored.splits().values(), strict=True):
        assert torch.equal(mine.images, other.images)
        assert torch.equal(mine.labels, other.labels)
        assert mine.names == other.names
    joint = read.train_and_valid()
    assert torch.equal(joint.in_memory().images, stored.train_and_valid().images)
    assert torch.equal(read.train.head(3).in_memory().images, stored.train.images[:3])


def test_many_images_stay_on_disk_by_themselves(tiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coattend.data.reading.STREAMED_ABOVE", 50 * 12 * 12 * 3 - 1)
    assert isinstance(load_data(tiles).train, StreamedSplit)
    assert not isinstance(load_data(tiles, keep="memory").train, StreamedSplit)
    monkeypatch.setattr("coattend.data.reading.STREAMED_ABOVE", 50 * 12 * 12 * 3)
    assert not isinstance(load_data(tiles).train, StreamedSplit)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_the_order_asked_for(tiles: Path, workers: int) -> None:
    split = load_data(tiles, keep="disk").train
    whole = split.in_memory()
    reader = BatchReader(split, workers, replace=True)
    for order in ([[3, 1], [0, 2, 7], [5]], [[6], [4, 0]]):  # the same workers serve a second pass
        batches = list(reader.read(order))
        assert [batch.indices.tolist() for batch in batches] == order
        for batch in batches:
            assert torch.equal(batch.images, whole.images[batch.indices])
            assert torch.equal(batch.targets, whole.labels[batch.indices])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_breaks_is_replaced_or_left_out(tiles: Path, workers: int) -> None:
    split = load_data(tiles, keep="disk").train
    broken = Path(split.names[4])
    broken.write_bytes(broken.read_bytes()[:60])
    (replaced,) = BatchReader(split, workers, replace=True).read([[3, 4]])
    assert replaced.indices.tolist() == [3, 5]
    (unreadable,) = replaced.unreadable
    assert (unreadable.index, unreadable.name) == (4, str(broken))
    assert "cannot be read as an image" in unreadable.reason
    (left,) = BatchReader(split, workers, replace=False).read([[3, 4]])
    assert left.indices.tolist() == [3]
    (nothing,) = BatchReader(split, workers, replace=False).read([[4]])
    assert len(nothing.images) == 0


def test_bad_files_are_named_or_left_out_before_training(tiles: Path) -> None:
    for name in ("000.png", "001.png"):
        (tiles / "a" / name).write_bytes((tiles / "a" / name).read_bytes()[:80])
    (tiles / "a" / "002.png").write_bytes(b"<html>")
    with pytest.raises(DataError, match="3 of 50 images cannot be used"):
        load_data(tiles, keep="disk")
    for keep, count in (("memory", 3), ("disk", 1)):  # on disk, skipping reads headers only
        data = load_data(tiles, keep=keep, bad_files="skip")
        assert len(data.skipped) == count
        assert sum(map(len, data.splits().values())) == 50 - count


def test_mixed_channels_are_refused(tiles: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tiles / "a" / "x.tif", np.zeros((5, 12, 12), np.uint8), metadata={"axes": "CYX"})
    with pytest.raises(DataError, match="x.tif: expected 3 channels as in most of the images, got 5"):
        load_data(tiles)


def test_another_folder_has_another_digest(tiles: Path, tmp_path: Path) -> None:
    from coattend.train.run import digest_of

    first = digest_of(load_data(tiles, keep="disk"))
    assert digest_of(load_data(tiles, keep="disk")) == first
    tiles.rename(tmp_path / "moved")
    assert digest_of(load_data(tmp_path / "moved", keep="disk")) == first
    (tmp_path / "moved" / "a" / "029.png").unlink()
    assert digest_of(load_data(tmp_path / "moved", keep="disk")) != first


def test_masks_are_read_with_their_images(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "own", 20)
    data, stored = load_data(top, keep="disk"), load_data(top)
    assert data.train.known_labels is None
    (batch,) = BatchReader(data.train, 0, replace=True).read([[0, 1]])
    assert torch.equal(batch.targets, stored.train.labels[:2])
    write(top / "masks" / Path(data.train.names[5]).name, np.full((12, 12), 9, np.uint8))
    with pytest.raises(DataError, match=".png: its mask has class numbers outside of 0 to 1"):
        data.train.read(5)


class Squares(torch.utils.data.Dataset):
    """A user's dataset: numbers as images."""

    def __init__(self, count: int, bad: int | None = None) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.bad:
            raise KeyError("lost")
        return torch.full((1, 8, 8), index, dtype=torch.uint8), index % 2


def test_a_dataset_of_the_user_s_own() -> None:
    data = from_datasets("squares", Squares(20), Squares(4), Squares(6), classes=("even", "odd"))
    assert isinstance(data, Dataset)
    assert (data.image_shape, data.task) == ((1, 8, 8), "classification")
    assert data.train.in_memory().labels.tolist() == [0, 1] * 10
    (batch,) = BatchReader(data.test, 0, replace=True).read([[5, 0]])
    assert batch.images[:, 0, 0, 0].tolist() == [5, 0]
    lost = from_datasets("squares", Squares(20, bad=3), Squares(4), Squares(6), classes=("even", "odd"))
    with pytest.raises(DataError, match=r"image 3 cannot be read \(KeyError: 'lost'\)"):
        lost.train.read(3)
    with pytest.raises(DataError, match="from_datasets expects datasets with a length"):
        from_datasets("none", [], Squares(4), Squares(6), classes=("even", "odd"))
    with pytest.raises(DataError, match="expected a label from 0 to 1, got 2"):
        from_datasets("few", Squares(20), Squares(4), [(torch.zeros(1, 8, 8).float(), 2)], classes=("even", "odd"))
