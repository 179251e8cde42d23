"""Square brackets in names of folders, classes and networks are text, never markup."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend._terminal import console
from coattend.cli import main
from coattend.data import Available, load_data
from coattend.report.console import data_table

Image = pytest.importorskip("PIL.Image")
CLASSES = ("[/red]", "[unclear]")


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    torch.set_default_dtype(torch.float32)

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["coattend", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        return said.out.replace("\n", "")  # tables fold what is wider than the terminal

    return run


def test_every_verb_prints_them_as_they_are(verb: Callable[..., str], tmp_path: Path) -> None:
    here = tmp_path / "x[" / "b]"  # "x[/b]" in every path below
    here.mkdir(parents=True)
    digits, one = load_data("mini").test.images[:40, 0].numpy(), here / "[1].png"
    np.savez(here / "images.npz", images=digits, labels=np.arange(40) % 2, classes=np.array(CLASSES))
    Image.fromarray(digits[1]).save(one)
    said = verb("train", "p4cnn:width=1", "--data", here / "images.npz", "--set", "epochs=1", "--folder", here / "runs")
    (run,) = {path.parent for path in here.rglob("result.json")}
    assert str(run) in said
    assert str(run) in verb("evaluate", run)
    predicted = verb("predict", run, one)
    assert any(f"{one}: {name}  " in predicted for name in CLASSES)
    assert f"wrote {here / 'page.html'}" in verb("report", run, "--to", here / "page.html")
    assert all(name in (here / "page.html").read_text() for name in CLASSES)
    assert f"wrote {here / 'pictures' / 'layer1.png'}" in verb("attend", run, one, "--to", here / "pictures")
    certified = here / "network.safetensors"
    assert str(certified) in verb("export", run, "--to", certified)
    assert "x[/b]" in verb("check", certified)


def test_tables_print_them_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    entry = Available("[red]", (1, 1, 1), (1, 28, 28), Path("x[/b]"), "made by [/red] :smile:")
    console().print(data_table([entry]))
    said = capsys.readouterr().out
    for text in ("[red]: x[/b]", "made by [/red] :smile:"):
        assert text in said
