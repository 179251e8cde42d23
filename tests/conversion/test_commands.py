"""The verbs equivariantize and advise, and the files of converted networks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import coattend as ca
from coattend.cli import main
from coattend.conversion import load_converted, save_converted
from coattend.conversion.recognition import Recognition, recognition
from coattend.conversion.source import load_source
from coattend.export import check_certificate
from coattend.train import changed, get_recipe, train

CODE = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

def number():
    return 3
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coattend", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "user_networks.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_networks", raising=False)
    return tmp_path


def test_a_python_function_becomes_an_onnx_file_with_a_certificate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "equivariantize", "user_networks:small", "--size", "16", "--to", "out.onnx") == 0
    printed = capsys.readouterr().out
    assert "equivariant to D4 at 16 x 16 pixels" in printed
    check = check_certificate(folder / "out.onnx")
    assert check is not None
    assert check.agrees


def test_a_file_of_ours_becomes_a_file_that_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ca.create_model("z2cnn:width=4").float().eval()
    ca.save_model(plain, "plain.safetensors")
    assert run(monkeypatch, "equivariantize", "plain.safetensors", "--group", "p4", "--to", "out.safetensors") == 0
    network = load_converted("out.safetensors").eval()
    x = torch.randn(2, 1, 28, 28, dtype=torch.float32)
    with torch.no_grad():
        mean = torch.stack([plain(torch.rot90(x, r, (-2, -1))) for r in range(4)]).mean(0)
    torch.testing.assert_close(network(x), mean)


def test_projection_prints_what_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("equivariantize", "user_networks:small", "--mode", "project", "--to", "out.safetensors")
    assert run(monkeypatch, *arguments) == 0
    assert "0: projected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent_module:f", "no module 'absent_module'"),
        ("user_networks:absent", "no function 'absent'"),
        ("user_networks:number", "returned int"),
        ("nothing", "no file, run folder, model or module:function"),
    ],
)
def test_wrong_sources(source: str, message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_source(source)


def test_files_of_own_networks_need_the_plain_network(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = ca.equivariantize(plain, "p4", relative=None, attention=True, size=8)
    path = tmp_path / "own.safetensors"
    save_converted(network, path)
    x = torch.randn(2, 3, 8, 8)
    again = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert torch.equal(load_converted(path, again)(x), network(x))
    with pytest.raises(ValueError, match="pass the plain network"):
        load_converted(path)
    with pytest.raises(ValueError, match="does not fit"):
        load_converted(path, nn.Sequential(nn.Conv2d(3, 5, 3, padding=1)))
    with pytest.raises(ValueError, match="there is no file"):
        load_converted(tmp_path / "absent.safetensors")
    ca.save_model(ca.create_model("z2cnn:width=2"), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="not a file written by save_converted"):
        load_converted(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="expects what equivariantize returned"):
        save_converted(plain, path)


class Corner(nn.Module):
    """Answers 1 if the upper left pixel is bright."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.full_like(x[:, 0, 0, 0], 0.5), x[:, 0, 0, 0]], 1)


def test_recognition_counted_by_hand() -> None:
    images = torch.zeros(2, 1, 4, 4)
    images[0, 0, 0, 0] = 1  # its corner is at the upper left in one of four poses; the second image is dark in all
    measured = recognition(Corner(), images, torch.tensor([1, 0]), ca.get_group("p4"))
    assert measured == Recognition(upright=1.0, in_poses=(1 + 4) / 8, consistent=0.5)


def test_projection_says_what_it_costs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder knows its data; a file without preprocessing does not; masks are no classes."""
    torch.set_default_dtype(torch.float32)
    recipe = changed(get_recipe("quick", "z2cnn"), ["epochs=1", "train_images=128"])
    train("z2cnn:width=4", recipe, 0, folder / "runs", accelerator="cpu")
    runs = str(next((folder / "runs").rglob("seed0")))
    project = ("equivariantize", runs, "--mode", "project", "--overwrite", "--to", "out.onnx")
    assert run(monkeypatch, *project) == 0
    printed = capsys.readouterr().out
    assert "over D4, digest" in printed  # the certificate is about the group, though no layer is over it
    lines = [line for line in printed.splitlines() if "right" in line]
    assert [line.split(":")[0] for line in lines] == ["before", "after"]
    assert "100.00 % with one answer" in lines[1]
    assert "100.00 % with one answer" not in lines[0]
    assert run(monkeypatch, "equivariantize", "z2cnn:width=4", *project[2:]) == 0
    assert "measure it with --data" in capsys.readouterr().out
    assert run(monkeypatch, *project, "--data", "nuclei-mini") == 2
    assert "expected images with one class each to recognize" in capsys.readouterr().err
