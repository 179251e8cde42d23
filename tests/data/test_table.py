from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, load_data
from tests.data.pictures import noise, write

pytest.importorskip("PIL")


def table(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Paths of 40 images, relative to the folder of the table."""
    for i in range(40):
        write(tmp_path / "pictures" / f"{i:02}.png", noise(i))
    return [f"pictures/{i:02}.png" for i in range(40)]


def test_labels_are_names_of_classes(tmp_path: Path, images: list[str]) -> None:
    path = table(tmp_path / "t.csv", ["path", "label", "note"], [[p, "ab"[i % 2], "x"] for i, p in enumerate(images)])
    data = load_data(path)
    assert (data.name, data.task, data.classes) == ("t", "classification", ("a", "b"))
    assert [part.labels.bincount().tolist() for part in data.splits().values()] == [[16, 16], [2, 2], [2, 2]]
    for name, label in zip(data.train.names, data.train.labels, strict=True):
        assert int(Path(name).stem) % 2 == int(label)


def test_a_parquet_file_is_a_table_too(tmp_path: Path, images: list[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"path": images, "target size": [float(i) for i in range(40)], "target age": list(range(40))}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    data = load_data(tmp_path / "t.parquet")
    assert (data.task, data.classes) == ("regression", ("size", "age"))
    seeds = [int(Path(name).stem) for name in data.train.names]
    assert data.train.labels.tolist() == [[i, i] for i in seeds]


def test_several_labels_and_none(tmp_path: Path, images: list[str]) -> None:
    path = table(tmp_path / "t.csv", ["path", "labels"], [[p, ("", "b", "a|c")[i % 3]] for i, p in enumerate(images)])
    data = load_data(path)
    assert (data.task, data.classes) == ("multi-label", ("a", "b", "c"))
    for name, row in zip(data.train.names, data.train.labels.tolist(), strict=True):
        assert row == [[0, 0, 0], [0, 1, 0], [1, 0, 1]][int(Path(name).stem) % 3]


def test_a_table_of_masks(tmp_path: Path, images: list[str]) -> None:
    for i in range(40):
        write(tmp_path / "m" / f"{i}.png", noise(i, (12, 12), 2))
    path = table(tmp_path / "t.csv", ["path", "mask"], [[p, f"m/{i}.png"] for i, p in enumerate(images)])
    data = load_data(path)
    assert data.task == "segmentation"
    seed = int(Path(data.test.names[0]).stem)
    assert np.array_equal(data.test.labels[0].numpy(), noise(seed, (12, 12), 2))


def test_groups_are_never_divided(tmp_path: Path, images: list[str]) -> None:
    rows = [[p, "ab"[i % 2], f"patient {i // 4}"] for i, p in enumerate(images)]
    path = table(tmp_path / "t.csv", ["path", "label", "patient"], rows)
    patient = {str(tmp_path / p): name for p, _, name in rows}
    data = load_data(path, group="patient")
    assert "without dividing groups" in data.provenance
    parts = [{patient[name] for name in part.names} for part in data.splits().values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 10
    assert all(set(part.labels.tolist()) == {0, 1} for part in data.splits().values())
    assert [len(part) for part in data.splits().values()] == [32, 4, 4]
    divided = [{patient[name] for name in part.names} for part in load_data(path).splits().values()]
    assert set.intersection(divided[0], divided[1])  # without the column, the same table does leak
    with pytest.raises(DataError, match=r"has no column 'patiant' \(did you mean patient"):
        load_data(path, group="patiant")


def test_given_splits_that_leak_are_refused(tmp_path: Path, images: list[str]) -> None:
    splits = ["train"] * 30 + ["val"] * 5 + ["test"] * 5
    rows = [[p, "ab"[i % 2], f"s{i // 3}", splits[i]] for i, p in enumerate(images)]
    path = table(tmp_path / "t.csv", ["path", "label", "group", "split"], rows)
    with pytest.raises(DataError, match="1 groups are in both test and valid, for example 's11'"):
        load_data(path)
    rows = [[p, label, f"s{i // 5}", split] for i, (p, label, _, split) in enumerate(rows)]
    data = load_data(table(path, ["path", "label", "group", "split"], rows))
    assert [len(part) for part in data.splits().values()] == [30, 5, 5]


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (["file", "label"], [["pictures/00.png", "a"]], "expected the column path and one of label"),
        (["path", "label", "mask"], [["pictures/00.png", "a", "x"]], "expected the column path and one of"),
        (["path", "label"], [["pictures/xx.png", "a"]], r"line 2: there is no file .*xx.png"),
        (["path", "label"], [["pictures/00.png", ""]], "line 2: expected a label, got none"),
        (["path", "target"], [["pictures/00.png", "tall"]], "line 2: expected a finite number in 'target', got 'tall'"),
        (["path", "target"], [["pictures/00.png", "nan"]], "expected a finite number"),
        (["path", "label", "split"], [["pictures/00.png", "a", "dev"]], "expected the split train, valid or test"),
        (["path", "label"], [["pictures/00.png"]], "line 2 has not the 2 columns"),
        (["path", "label"], [], "expected a row per image"),
        (["path", "label"], [["pictures/00.png", "a"], ["pictures/01.png", "b"]], "at least 3 images of each class"),
        (["path", "label"], [["pictures/00.png", "a"]] * 4, "expected at least two classes"),
    ],
)
def test_a_wrong_table_is_refused(
    tmp_path: Path, images: list[str], header: list[str], row: list[list[object]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_data(table(tmp_path / "t.csv", header, row))


def test_npz_files_hold_every_kind_of_target(tmp_path: Path) -> None:
    images = noise(0, (30, 8, 8, 3))
    kinds = {
        "multi-label": {"labels": noise(1, (30, 4), 2)},
        "regression": {"targets": np.arange(30.0)},
        "segmentation": {"masks": noise(2, (30, 8, 8), 3)},
    }
    for task, arrays in kinds.items():
        np.savez(tmp_path / "own.npz", images=images, **arrays)
        assert load_data(tmp_path / "own.npz").task == task
    np.savez(tmp_path / "own.npz", images=images, targets=np.full(30, np.nan))
    with pytest.raises(DataError, match="expected finite train targets"):
        load_data(tmp_path / "own.npz")
    groups = np.arange(30) // 5
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(30) % 2, groups=groups)
    assert "without dividing groups" in load_data(tmp_path / "own.npz").provenance


def test_an_npz_may_have_splits_and_a_column_of_labels(tmp_path: Path) -> None:
    parts = {f"{split}_images": noise(i, (9, 8, 8)) for i, split in enumerate(("train", "val", "test"))}
    labels = {f"{split}_labels": np.arange(9)[:, None] % 3 for split in ("train", "val", "test")}
    np.savez(tmp_path / "medical.npz", **parts, **labels)
    data = load_data(tmp_path / "medical.npz")
    assert (data.classes, data.image_shape) == (("0", "1", "2"), (1, 8, 8))
    assert torch.equal(data.valid.images[:, 0], torch.from_numpy(parts["val_images"]))
