from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

import coattend as ca


@pytest.mark.parametrize(
    "name", ["z2cnn", "a_dren_maxpool", "a_p4m_allcnn", "p4m_resnet44", "a_r_nin_x4", "a_r_resnet20_x4"]
)
def test_the_state_round_trips_with_the_arguments_that_built_it(name: str, tmp_path: Path) -> None:
    options = {"width": 4, "num_classes": 3, **({"blocks": 1} if "resnet" in name else {})}
    model = ca.create_model(name, **options).eval()
    ca.save_model(model, tmp_path / "model.safetensors")
    loaded = ca.load_model(tmp_path / "model.safetensors").eval()
    assert loaded.config == model.config
    size = ca.model_entry(name).image_size
    x = torch.randn(1, model.in_channels, size, size)
    assert torch.equal(loaded(x), model(x))
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_files_are_as_small_as_the_weights(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    ca.save_model(ca.create_model("p4cnn"), tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").stat().st_size < 4 * 19_880 + 8_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    ca.save_model(ca.create_model("p4cnn").to(dtype), tmp_path / "m.safetensors")
    assert {p.dtype for p in ca.load_model(tmp_path / "m.safetensors").parameters()} == {dtype}


def test_groups_are_kept_by_name_or_by_table(tmp_path: Path) -> None:
    own = ca.dihedral(4).restrict((0, 2, 4, 6))
    for group in (own, ca.dihedral(2), "C8", ca.cyclic(4, clockwise=True)):
        ca.save_model(ca.create_model("a_p4cnn", group=group, width=3), tmp_path / "m.safetensors")
        assert ca.load_model(tmp_path / "m.safetensors").group == ca.get_group(group)


def saved(path: Path, name: str = "p4cnn") -> Path:
    ca.save_model(ca.create_model(name), path)
    return path


def content_of(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    content = path.read_bytes()
    for length in (0, 5, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"not a complete safetensors file.*copy or download it again"):
            ca.load_model(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(3)}, other)
    with pytest.raises(ValueError, match=r"not one written by coattend.save_model.*convert_state_dict"):
        ca.load_model(other)
    pickle = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(3)}, pickle)
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        ca.load_model(pickle)
    with pytest.raises(ValueError, match="there is no file"):
        ca.load_model(tmp_path / "nothing.safetensors")


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    with pytest.raises(
        ValueError, match=r"holds p4cnn, which does not fit.*head is decycle instead of max.*same name and options"
    ):
        ca.load_model(path, into=ca.create_model("p4cnn:head=max"))
    mine = ca.create_model("p4cnn:dropout=0.3")  # acts in training only
    assert ca.load_model(path, into=mine) is mine
    metadata, tensors = content_of(path)
    tensors.pop("head.layer7.conv.weight")
    metadata.pop("digest")
    safetensors.torch.save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=r"head.layer7.conv.weight is missing. The file is damaged"):
        ca.load_model(path)


def test_a_newer_format_is_recognised(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    metadata, tensors = content_of(path)
    safetensors.torch.save_file(tensors, path, {**metadata, "format_version": "99"})
    with pytest.raises(ValueError, match=r"in format 99.*upgrade the library"):
        ca.load_model(path)


def test_what_cannot_be_saved_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="networks built by create_model, got Linear"):
        ca.save_model(torch.nn.Linear(1, 1), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=r"no folder .*absent"):
        ca.save_model(ca.create_model("p4cnn"), tmp_path / "absent" / "m.safetensors")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match="taken is a folder; expected the name of the file to write"):
        ca.save_model(ca.create_model("p4cnn"), tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


class Twice(torch.nn.Module):
    """One layer under two names."""

    def __init__(self, num_classes: int = 2, in_channels: int = 1) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(in_channels, 4, 3, padding=1)
        self.layer = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.again = self.layer
        self.linear = torch.nn.Linear(4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.again(self.layer(self.first(x).relu()).relu()).mean((2, 3)))


def test_layers_under_two_names_are_saved_and_stay_one(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    model = ca.create_model(ca.models.register_module(Twice)).eval()
    ca.save_model(model, tmp_path / "m.safetensors")
    loaded = ca.load_model(tmp_path / "m.safetensors").eval()
    x = torch.randn(2, model.in_channels, 9, 9)
    assert torch.equal(loaded(x), model(x))
    assert loaded.module.again is loaded.module.layer
