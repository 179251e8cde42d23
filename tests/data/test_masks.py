from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, load_data
from coattend.data.fitting import Fit
from coattend.data.masks import fit_mask
from tests.data.pictures import mask_folders, noise, write

pytest.importorskip("PIL")


def test_images_and_masks_are_paired_by_name(tmp_path: Path) -> None:
    data = load_data(mask_folders(tmp_path / "own", 20, classes=3))
    assert (data.task, data.classes) == ("segmentation", ("class 0", "class 1", "class 2"))
    assert [len(part) for part in data.splits().values()] == [16, 2, 2]
    for part in data.splits().values():
        assert part.labels.shape == (len(part), 12, 12)
        for name, mask in zip(part.names, part.labels, strict=True):
            seed = int(Path(name).stem)
            assert np.array_equal(mask.numpy(), noise(seed, (3, 3), 3).repeat(4, 0).repeat(4, 1))


def test_names_of_classes_splits_and_masks_of_0_and_255(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        mask_folders(tmp_path / "own" / split, 4)
        for path in (tmp_path / "own" / split / "masks").glob("*.png"):
            write(path.with_name(f"{path.stem}_mask.png"), (noise(int(path.stem), (12, 12), 2) * 255).astype(np.uint8))
            path.unlink()
    data = load_data(tmp_path / "own")
    assert data.classes == ("background", "foreground")
    assert data.train.labels.unique().tolist() == [0, 1]
    (tmp_path / "own" / "classes.txt").write_text("tissue\nnucleus\n")
    assert load_data(tmp_path / "own").classes == ("tissue", "nucleus")
    assert load_data(tmp_path / "own", keep="disk").in_memory().train.labels.equal(data.train.labels)


def test_every_wrong_mask_is_named_before_training(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "own", 6)
    (top / "masks" / "001.png").unlink()
    (top / "images" / "004.png").unlink()
    with pytest.raises(DataError) as caught:
        load_data(top)
    assert f"{top / 'images' / '001.png'} has no mask in {top / 'masks'}" in str(caught.value)
    assert f"{top / 'masks' / '004.png'} has no image in {top / 'images'}" in str(caught.value)
    top = mask_folders(tmp_path / "other", 6)
    write(top / "masks" / "002.png", np.zeros((12, 10), np.uint8))
    with pytest.raises(DataError, match="expected the mask to have the 12 x 12 pixels of 002.png, got 12 x 10"):
        load_data(top)
    skipping = load_data(top, bad_files="skip")
    assert sum(map(len, skipping.splits().values())) == 5
    assert [Path(name).name for name, _ in skipping.skipped] == ["002.png"]
    write(top / "masks" / "002.png", np.zeros((12, 12, 3), np.uint8))
    with pytest.raises(DataError, match=r"002.png: expected a mask of one channel .* got Pillow's mode 'RGB'"):
        load_data(top)


def test_values_outside_of_the_classes_are_refused(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "own", 6)
    write(top / "masks" / "003.png", np.full((12, 12), 7, np.uint8))
    with pytest.raises(DataError, match=r"003.png: expected class numbers from 0 to 2, for the 3 numbers .* got 7"):
        load_data(top)
    (top / "classes.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"003.png: expected class numbers from 0 to 1, for the 2 classes .* got 7"):
        load_data(top)
    write(top / "masks" / "003.png", np.zeros((12, 12), np.uint8))
    (top / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match="expected pixels of the class 'c' in some mask, got none"):
        load_data(top)
    for path in (top / "masks").glob("*.png"):
        write(path, np.ones((12, 12), np.uint8))
    (top / "classes.txt").unlink()
    with pytest.raises(DataError, match="expected class numbers from 0 to 0"):
        load_data(top)


@pytest.mark.parametrize("fit", ["resize", "crop"])
@pytest.mark.parametrize("size", [5, 8, 9])
def test_fitting_a_mask_commutes_with_turns_and_mirrors(fit: Fit, size: int) -> None:
    mask = torch.from_numpy(noise(0, (14, 19), 4))
    fitted = fit_mask(mask, 4, size, fit)
    assert fitted.shape == (size, size)
    for turns in range(4):
        assert fit_mask(mask.rot90(turns), 4, size, fit).equal(fitted.rot90(turns))
    assert fit_mask(mask.flip(1), 4, size, fit).equal(fitted.flip(1))
    constant = torch.full((14, 19), 3, dtype=torch.uint8)
    assert fit_mask(constant, 4, size, fit).unique().tolist() == [3]


def test_a_mask_follows_its_image(tmp_path: Path) -> None:
    """An image whose brightness is its class: after scaling, bright pixels have class 1."""
    for i in range(4):
        mask = np.zeros((30, 40), np.uint8)
        mask[5:25, 8 + i : 30] = 1
        write(tmp_path / "images" / f"{i}.png", mask * 255)
        write(tmp_path / "masks" / f"{i}.png", mask)
    train = load_data(tmp_path, size=15).train
    assert ((train.images[:, 0] > 128) == (train.labels == 1)).all()
