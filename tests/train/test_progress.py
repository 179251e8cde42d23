from __future__ import annotations

import io

import pytest
from rich.console import Console

from coattend.train import progress
from coattend.train.history import Epoch


def shown(monkeypatch: pytest.MonkeyPatch, width: int, title: str) -> str:
    """What a terminal of that width shows after an epoch."""
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(progress, "console", lambda **_: screen)
    with progress.TrainingProgress(title, 100, 0, visible=True) as bar:
        bar.step(99, 0.5, 0.81234, 128)
        bar.epoch(Epoch(epoch=99, train_loss=0.8, train_accuracy=0.78, valid_accuracy=0.38, seconds=2.0))
        bar.bar.refresh()
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize("title", ["p4cnn seed 0", "p4m_allcnn:width=2,attention=output,head=max seed 12"])
def test_bar_and_time_left_fit_into_80_columns(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, 80, title)
    bar = next(line for line in reversed(text.splitlines()) if "img/s" in line)
    assert "━" in bar
    assert "epoch 100/100  loss 0.812" in bar
    assert ":" in bar.rpartition("img/s")[2]  # the time left
    assert title[-6:].strip() in bar
    assert f"{title}  epoch 100/100  loss 0.8000  train 78.00%  valid 38.00%  2.0 s" in text  # stays above the bar
