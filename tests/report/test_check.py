"""``coattend check``: which images, which files, and what it says of them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

import coattend as ca
from coattend.report import check_network
from coattend.report.console import check_table


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)


def checked(model: str | Path, size: int | None = None, group: str | None = None) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=300, markup=False, highlight=False)
    check = check_network(str(model), size, group)
    console.print(check_table(check), crop=False)
    return check.holds, console.file.getvalue()


def trained_file(path: Path, name: str = "p4_allcnn:width=2", size: int = 17) -> Path:
    network = ca.create_model(name)
    network.image_shape = (network.in_channels, size, size)
    ca.save_model(network, path)
    return path


def test_the_size_is_that_of_the_images_it_was_trained_on(tmp_path: Path) -> None:
    """At 32 x 32, the size of CIFAR-10, it would not be exact."""
    holds, text = checked(trained_file(tmp_path / "m.safetensors"))
    assert holds
    assert "at 17 x 17" in text
    assert "p4_allcnn is exactly equivariant to C4 on images of 17 x 17" in text
    holds, text = checked(tmp_path / "m.safetensors", size=32)
    assert not holds
    assert "p4_allcnn is NOT exactly equivariant to C4 on images of 32 x 32: use images of 29 x 29 or 33 x 33" in text


def test_run_folders_are_taken_too(tmp_path: Path) -> None:
    trained_file(tmp_path / "last.safetensors", size=21)
    assert "at 21 x 21" in checked(tmp_path)[1]
    trained_file(tmp_path / "best.safetensors", size=17)
    assert "at 17 x 17" in checked(tmp_path)[1]


def test_a_network_of_nan_is_not_equivariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = ca.create_model("p4cnn:width=2")
    network.stages[0].layer1.conv.weight.data[0, 0, 1, 1] = float("nan")
    monkeypatch.setattr("coattend.report.check.create_model", lambda name: network)
    holds, text = checked("p4cnn:width=2")
    assert not holds
    assert "the outputs are not finite" in text
    assert "stages.0.layer1.conv" in text


@pytest.mark.parametrize("size", [0, -5, 10**9])
def test_sizes_that_no_image_has_are_refused(size: int) -> None:
    with pytest.raises(
        ValueError, match=f"--size expects the height and width of images, 1 to 2048 pixels, got {size}"
    ):
        checked("p4cnn:width=2", size=size)


def test_an_exported_file_takes_neither_size_nor_group(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    for options in ({"size": 64}, {"group": "p4"}):
        with pytest.raises(ValueError, match="checked at the size and over the group of its certificate"):
            checked(tmp_path / "m.onnx", **options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("x" * 5000, "unknown model"),
        ("x" * 5000 + ".safetensors", "there is no file"),
        ("x" * 5000 + ".onnx", "there is no file"),
        ("/proc/self/mem", "/proc/self/mem"),
    ],
)
def test_paths_that_cannot_be_read_are_named(model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(model)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder; expected best.safetensors"):
        checked(tmp_path)
