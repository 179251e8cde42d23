from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from coattend.data import DataError, Dataset, available, load_data, medmnist
from coattend.data.fitting import fit_images
from tests.data import fakes


@pytest.mark.parametrize("name", ["rotated-mnist", "mnist", "cifar10"])
def test_a_missing_set_names_the_command_and_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name} is not in {folder}; run `coattend data fetch {name}`"):
        load_data(name)
    assert os.listdir(folder) == []


def test_unknown_names_and_paths(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"unknown dataset 'rotated_mnist' \(did you mean rotated-mnist or rotated-mnist-v1 or octmnist\?\); the",
    ):
        load_data("rotated_mnist")
    with pytest.raises(DataError, match="unknown dataset 'xxx"):
        load_data("x" * 5000)
    with pytest.raises(DataError, match="load_data expects the name of a dataset or a path, got NoneType"):
        load_data(None)
    with pytest.raises(DataError, match="would take more than 128 GiB of memory; choose a smaller size"):
        load_data("mini", size=10**6)
    for path in (tmp_path / "nothing", str(tmp_path / "nothing"), "nothing.npz"):
        with pytest.raises(DataError, match="does not exist; expected an image folder, an .npz, or one of mini"):
            load_data(path)
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(DataError, match="expected an image folder, an .npz .* got a .txt file"):
        load_data(tmp_path / "a.txt")


def test_the_list_has_every_name_and_what_is_there(folder: Path) -> None:
    listed = {entry.name: entry for entry in available()}
    first = ["mini", "cifar10", "radio-galaxies", *medmnist.MEMBERS]
    assert list(listed) == [*first, "mnist", "nuclei-mini", "rotated-mnist", "rotated-mnist-v1"]
    assert listed["nuclei-mini"].provenance.startswith("Data Science Bowl 2018 nuclei")
    assert listed["mini"].provenance == "generated from MNIST (seed 28)"
    assert listed["rotated-mnist"].sizes == (10_000, 2_000, 50_000)
    assert listed["cifar10"].where is None
    assert listed["cifar10"].provenance == "not fetched"


def test_a_folder_that_cannot_be_written_to_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dataset: Dataset, path: Path) -> None:
        raise PermissionError(path)

    fakes.write_idx(folder)
    monkeypatch.setattr("coattend.data.store.save_dataset", refuse)  # root may write everywhere, so it is acted
    assert len(load_data("mnist").train) == 50


@pytest.mark.parametrize(("size", "fit"), [(29, "resize"), (27, "crop"), (28, "resize"), (14, "resize")])
def test_size_applies_to_named_sets_too_and_is_recorded(size: int, fit: str) -> None:
    data = load_data("mini", size=size, fit=fit)
    assert data.image_shape == (1, size, size)
    assert data.provenance.endswith("seed 28)" if size == 28 else f", {fit} to {size} x {size}")


def test_resizing_commutes_with_quarter_turns_and_mirrors() -> None:
    digits = load_data("mini").valid.images[:50]
    coloured = torch.randint(256, (2, 3, 54, 62), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for images, size, fit in (
        (digits, 17, "resize"),
        (digits, 29, "resize"),
        (digits, 27, "crop"),
        (digits[..., :21], 28, "resize"),
        (coloured, 48, "resize"),
        (coloured, 47, "crop"),
        (coloured[..., :3], 8, "resize"),
    ):
        small = fit_images(images, size, fit)
        for k in range(4):
            for mirrored in (images, images.flip(-1)):
                expected = (small if mirrored is images else small.flip(-1)).rot90(k, (-2, -1))
                assert torch.equal(fit_images(mirrored.rot90(k, (-2, -1)), size, fit), expected)


def test_resizing_agrees_with_torch() -> None:
    images = load_data("mini").valid.images[:50]
    for size in (17, 29, 56):
        expected = F.interpolate(images.float(), (size, size), mode="bicubic", antialias=True).round().clamp(0, 255)
        assert (fit_images(images, size, "resize").int() - expected.int()).abs().max() <= 1


def test_fitting_scales_the_shorter_side_and_cuts_the_longer() -> None:
    wide = torch.arange(40, dtype=torch.uint8).expand(2, 1, 20, 40) * 6
    assert torch.equal(fit_images(wide, 20, "resize"), wide[..., 10:30])
    assert torch.equal(fit_images(wide, 10, "crop"), wide[..., 5:15, 15:25])
    assert torch.equal(fit_images(wide, 11, "crop"), wide[..., 4:15, 14:25] + 3)  # its centre is between two pixels
    half = fit_images(wide, 10, "resize")
    assert half.shape == (2, 1, 10, 10)
    assert (half.int() - wide[..., :10, 11:31:2].int()).abs().max() <= 6  # a ramp stays the ramp
    assert fit_images(wide[:0], 10, "resize").shape == (0, 1, 10, 10)


@pytest.mark.parametrize(
    ("size", "fit", "message"),
    [
        (0, "resize", "whole number of pixels, at least 1, got 0"),
        (2.5, "resize", "got 2.5"),
        (True, "resize", "got True"),
        (30, "crop", "cannot crop 30 x 30 out of 28 x 28"),
        (20, "stretch", "expected fit to be one of 'resize', 'crop', got 'stretch'"),
    ],
)
def test_wrong_sizes(size: int, fit: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data("mini", size=size, fit=fit)
