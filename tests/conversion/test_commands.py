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
from coattend.conversion.source import load_source
from coattend.export import check_certificate

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
        ("nothing", "no file, no model's name and no module:function"),
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
