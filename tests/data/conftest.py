from __future__ import annotations

from pathlib import Path

import pytest

from coattend.data import cifar10, mnist, rotated_mnist
from tests.data import fakes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, small expected files, and no way out to the network."""
    fakes.expect_small_mnist(monkeypatch)
    fakes.expect_small_cifar(monkeypatch)
    for module in (cifar10, mnist, rotated_mnist):
        monkeypatch.setitem(module.STORED.__dict__, "sources", ())
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("COATTEND_DATA", str(folder))
    return folder
