from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from coattend.cli import main
from coattend.data.inspection import inspect_images
from tests.data.pictures import class_folders, mask_folders, write

pytest.importorskip("PIL")


def coattend(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["coattend", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_good_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    top = class_folders(tmp_path / "tiles", {"a": 12, "b [x]": 9})
    assert coattend(monkeypatch, "data", "inspect", top, "--sheet", tmp_path / "sheet.png") == 0
    printed = capsys.readouterr().out
    assert f"{top}: 21 images 3 x 12 x 12 for classification" in printed
    assert "whole: 21 images: a 12, b [x] 9" in printed
    assert "to train, validate and test: 17 / 2 / 2" in printed
    from PIL import Image

    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    first = np.asarray(Image.open(top / "a" / "000.png"))
    assert np.array_equal(pixels[8 + 5, 8 + 5], first[0, 0])  # the first image, enlarged


def test_every_problem_is_listed_and_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    top = class_folders(tmp_path / "tiles", {"a": 12, "b": 1})
    (top / "a" / "000.png").write_bytes((top / "a" / "000.png").read_bytes()[:90])
    write(top / "a" / "deep.png", np.zeros((12, 12), np.uint16))
    assert coattend(monkeypatch, "data", "inspect", top) == 1
    printed = capsys.readouterr().out
    assert "3 problems:" in printed
    assert "000.png cannot be read as an image" in printed
    assert "deep.png: expected 8 bits per channel as in most of the images, got 16 bits" in printed
    assert "expected at least 3 images of each class" in printed


def test_masks_on_disk_are_inspected_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = mask_folders(tmp_path / "cells", 12)
    inspection = inspect_images(top)
    assert not inspection.problems
    assert any("share of the pixels: class 0" in line for line in inspection.lines())
    monkeypatch.setattr("coattend.data.reading.STREAMED_ABOVE", 0)
    (top / "images" / "003.png").write_bytes((top / "images" / "003.png").read_bytes()[:90])
    (problem,) = inspect_images(top).problems
    assert "003.png cannot be read" in problem


def test_a_path_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert coattend(monkeypatch, "data", "inspect") == 2
    assert "data inspect expects a folder, a table or an .npz" in capsys.readouterr().err
    assert coattend(monkeypatch, "data", "inspect", tmp_path / "nothing") == 2
    assert "does not exist" in capsys.readouterr().err
