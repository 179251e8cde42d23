"""A dataset that is defined in this file alone: listed, fetched, loaded and trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coattend.data import DataError, Dataset, Split, available, fetch, load_data, register_dataset
from coattend.data.catalog import DATASETS
from coattend.data.sources import Progress
from coattend.report.console import data_table
from coattend.train import Recipe, RunFolder, load_trained, train

CLASSES = ("dark", "bright")


def squares(count: int, seed: int) -> Split:
    labels = torch.arange(count) % 2
    noise = torch.randint(100, (count, 1, 28, 28), generator=torch.Generator().manual_seed(seed))
    return Split((noise + 150 * labels.view(-1, 1, 1, 1)).byte(), labels)


def squares_dataset() -> Dataset:
    return Dataset("squares", squares(16, 0), squares(4, 1), squares(8, 2), CLASSES, "drawn by a test")


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("COATTEND_DATA", str(tmp_path / "data"))

    @register_dataset("squares", classes=CLASSES, image_shape=(1, 28, 28), description="dark and bright squares")
    def load_squares(folder: Path) -> Dataset:
        return squares_dataset()

    yield tmp_path / "data"
    DATASETS.remove("squares")


def test_a_dataset_of_another_package_is_listed_and_loaded(registered: Path) -> None:
    entry = {entry.name: entry for entry in available()}["squares"]
    assert entry.is_fetched
    assert entry.provenance == "dark and bright squares"
    assert data_table([entry])
    assert load_data("squares").image_shape == (1, 28, 28)
    assert load_data("squares", size=8).image_shape == (1, 8, 8)
    with pytest.raises(DataError, match=r"squares needs no fetching; load_data\('squares'\) loads it"):
        fetch("squares")
    with pytest.raises(DataError, match=r"unknown dataset 'square' \(did you mean squares\?\)"):
        load_data("square")


def test_it_is_trained_on(registered: Path, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    recipe = Recipe("tiny", data="squares", epochs=1, batch=8)
    train("p4cnn:width=2", recipe, 0, tmp_path / "runs")
    classifier = load_trained(RunFolder.of(tmp_path / "runs", "p4cnn:width=2", recipe, 0).path)
    assert classifier.classes == CLASSES
    assert classifier.image_shape == (1, 28, 28)
    assert {p.label for p in classifier.predict(load_data("squares").test.images)} <= set(CLASSES)


def test_it_may_be_fetched(tmp_path: Path) -> None:
    def fetch_squares(folder: Path, progress: Progress) -> Path:
        path = folder / "fetched" / "squares.pt"
        path.parent.mkdir(parents=True)
        path.touch()
        progress("squares.pt", 1, 1)
        return path.parent

    try:
        register_dataset("fetched", classes=CLASSES, image_shape=(1, 28, 28), description="d", fetch=fetch_squares)(
            lambda folder: squares_dataset()
        )
        assert [e.is_fetched for e in available(tmp_path) if e.name == "fetched"] == [False]
        seen: list[str] = []
        assert fetch("fetched", tmp_path, progress=lambda *step: seen.append(step[0])) == tmp_path / "fetched"
        assert seen == ["squares.pt"]
        assert [e.where for e in available(tmp_path) if e.name == "fetched"] == [tmp_path / "fetched"]
    finally:
        DATASETS.remove("fetched")


def test_what_load_returns_is_held_against_the_entry() -> None:
    try:
        register_dataset("wrong", classes=("one",), image_shape=(1, 28, 28))(lambda folder: squares_dataset())
        with pytest.raises(DataError, match=r"registered with 1 classes .* got 2 classes \(dark, bright\)"):
            load_data("wrong")
        with pytest.raises(DataError, match="there is a dataset 'wrong' already"):
            register_dataset("wrong", classes=("one",), image_shape=(1, 28, 28))(lambda folder: squares_dataset())
    finally:
        DATASETS.remove("wrong")
