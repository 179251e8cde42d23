"""The report, the export and the command line with a network of the user's own, for segmentation."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from coattend.cli import main
from tests.data.pictures import mask_folders

pytest.importorskip("PIL")
pytest.importorskip("jinja2")


def coattend(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["coattend", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_segmentation_from_data_to_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    torch.set_default_dtype(torch.float32)
    top = mask_folders(tmp_path / "cells", 20, classes=3, size=16)
    shutil.copy(Path(__file__).parents[1] / "own_networks.py", tmp_path / "nets_of_a_user.py")
    monkeypatch.chdir(tmp_path)
    settings = [word for setting in ("epochs=6", "lr=0.02", "batch=8") for word in ("--set", setting)]
    assert coattend(monkeypatch, "train", "nets_of_a_user:segmenter", "--data", top, "--name", "own", *settings) == 0
    printed = capsys.readouterr().out
    assert "for segmentation, 3 classes" in printed
    assert "nets_of_a_user:segmenter is exactly equivariant to C4 on images of 16 x 16" in printed
    assert "finished: mean Dice" in printed
    assert "share of pixels" in printed
    run = tmp_path / "runs" / "own" / "seed0"
    assert coattend(monkeypatch, "evaluate", run, "--csv", "all.csv") == 0
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 3
    assert coattend(monkeypatch, "evaluate", run, "--errors", "errors.csv") == 2
    assert "for segmentation; --csv writes the predictions" in capsys.readouterr().err
    assert coattend(monkeypatch, "predict", run, top / "images" / "000.png", "--json", "p.json") == 0
    assert sum(json.loads((tmp_path / "p.json").read_text())[0]["probabilities"].values()) == pytest.approx(1)
    assert coattend(monkeypatch, "report", run.parent) == 0
    page = (run.parent / "report.html").read_text()
    assert 'data-table="scores"' in page
    assert 'data-table="pixels"' in page
    assert "data:image/png;base64," in page
    assert 'id="angles"' not in page
    assert coattend(monkeypatch, "export", run, "--to", "cells.pt") == 0
    again = ["train", "nets_of_a_user:segmenter", "--data", top, "--from", run, "--name", "longer", *settings]
    assert coattend(monkeypatch, *again) == 0
    capsys.readouterr()
    monkeypatch.delitem(sys.modules, "nets_of_a_user")
    from coattend.models.registry import MODELS

    MODELS.remove("nets_of_a_user:segmenter")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    assert coattend(monkeypatch, "evaluate", run) == 2
    assert "built by nets_of_a_user:segmenter, which is not in this folder" in capsys.readouterr().err
