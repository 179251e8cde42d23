from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError, from_datasets, load_data
from coattend.models.classifier import load_trained
from coattend.train import Recipe, RunError, RunFolder, fit
from tests.data.pictures import mask_folders, noise, write

pytest.importorskip("PIL")

SMALL = Recipe("small", lr=0.02, epochs=3, batch=8, equivariance_every=1, preprocessing=("per-channel",), workers=0)


def bright(tmp_path: Path, header: list[str], target: object) -> Path:
    """A table of images whose brightness determines the target."""
    rows = [header]
    for i in range(60):
        level = 40 + 3 * i
        write(tmp_path / f"{i:02}.png", (noise(i, (8, 8, 3), 30) + level).astype(np.uint8))
        rows.append([f"{i:02}.png", *target(level)])
    with open(tmp_path / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path / "table.csv"


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_segmentation(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "cells", 30, classes=3, size=16)
    result = fit("tests.own_networks:segmenter", top, SMALL, root=tmp_path / "runs", name="s", settings=["epochs=12"])
    folder = tmp_path / "runs" / "s" / "seed0"
    assert result.test_error < 20  # 1 - mean Dice, in percent; without training about 70
    assert result.equivariance_error < 1e-5
    scores = json.loads((folder / "scores.json").read_text())
    assert (scores["task"], scores["score"]) == ("segmentation", "mean Dice")
    assert scores["headings"] == ["share of pixels", "Dice", "IoU"]
    assert 100 * (1 - scores["value"]) == pytest.approx(result.test_error)
    trained = load_trained(folder)
    data = load_data(top)
    with torch.no_grad():
        predicted = trained.eval()(data.test.images).argmax(1)
    truth = data.test.labels
    for number, row in enumerate(scores["rows"].values()):
        ours, theirs = predicted == number, truth == number
        both = int((ours & theirs).sum())
        assert row[1] == pytest.approx(2 * both / int(ours.sum() + theirs.sum()))
        assert row[2] == pytest.approx(both / int((ours | theirs).sum()))
        assert scores["confusion"][number][number] == both
    rows = read(folder / "predictions.csv")
    assert [row["path"] for row in rows] == list(data.test.names)
    assert (folder / "worst.png").is_file()
    (answer,) = trained.predict(data.test.images[:1])
    assert sum(answer.probabilities) == pytest.approx(1)
    assert "class" in answer.label


def test_regression(tmp_path: Path) -> None:
    table = bright(tmp_path, ["path", "target level", "target half"], lambda level: (level, level / 2 + 1000))
    result = fit("tests.own_networks:Plain", table, SMALL, root=tmp_path / "runs", name="r", settings=["epochs=25"])
    folder = tmp_path / "runs" / "r" / "seed0"
    assert result.test_error < 10  # percent of the variance
    rows = read(folder / "predictions.csv")
    errors = [abs(float(row["true half"]) - float(row["predicted half"])) for row in rows]
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["rows"]["half"][1] == pytest.approx(np.mean(errors), rel=1e-5)
    trained = load_trained(folder)
    (answer,) = trained.predict(load_data(table).test.images[:1])
    assert answer.probabilities[1] == pytest.approx(float(rows[0]["predicted half"]), rel=1e-5)
    assert answer.confidence is None


def test_several_labels(tmp_path: Path) -> None:
    def labels(level: int) -> tuple[str]:
        return ("|".join(name for name, on in (("dim", level < 120), ("light", level > 100)) if on),)

    table = bright(tmp_path, ["path", "labels"], labels)
    settings = ["epochs=20", "class_weights=balanced"]
    result = fit("tests.own_networks:Plain", table, SMALL, root=tmp_path / "runs", name="m", settings=settings)
    assert result.test_error < 10
    rows = read(tmp_path / "runs" / "m" / "seed0" / "predictions.csv")
    assert sum(row["truth"] == row["answer"] for row in rows) >= 0.7 * len(rows)


class Brightness(torch.utils.data.Dataset):
    def __init__(self, count: int, classes: int = 2) -> None:
        self.count, self.classes = count, classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % self.classes
        return torch.from_numpy(noise(index, (3, 8, 8), 60)) + 100 * label, label


def test_a_user_s_dataset_and_network(tmp_path: Path) -> None:
    data = from_datasets("levels", Brightness(40), Brightness(10), Brightness(12), classes=("low", "high"))
    from tests.own_networks import Plain

    result = fit(Plain, data, SMALL, root=tmp_path, name="own", settings=["epochs=8"])
    assert result.test_error == 0
    assert fit(Plain, data, SMALL, root=tmp_path, name="own", settings=["epochs=8"]).was_finished
    module = Plain(2)
    fit(module, data, SMALL, root=tmp_path, name="module")
    assert RunFolder(tmp_path / "module" / "seed0").run.model == "given:Plain"
    trained = load_trained(tmp_path / "module" / "seed0")
    assert not torch.equal(trained.network.module.head.weight, module.head.weight)  # the user's own stays as it was
    (answer,) = load_trained(tmp_path / "own" / "seed0").predict(data.test.read(1)[0][None])
    assert answer.label == "high"


def test_networks_that_do_not_fit_are_refused_before_training(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "cells", 12)
    with pytest.raises(
        RunError, match=r"segmentation on cells needs a network that maps .* to \(2, 2, 12, 12\), got \(2, 2\)"
    ):
        fit("tests.own_networks:Plain", top, SMALL, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    for name, message in (
        ("tests.own_networks:needs_more", "needs depth; expected a function of num_classes"),
        ("tests.own_networks:no_module", "must return a torch module, got int"),
        ("tests.own_networks:NUMBER", "has no function or class 'NUMBER'"),
        ("tests.own_networks:absent", "has no function or class 'absent'"),
        ("tests.no_networks:absent", "cannot be imported"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(name, top, SMALL, root=tmp_path / "runs")


def test_balance_is_refused_where_it_has_no_meaning(tmp_path: Path) -> None:
    table = bright(tmp_path, ["path", "target"], lambda level: (level,))
    for setting in ("class_weights=balanced", "sampling=balanced"):
        with pytest.raises(ValueError, match=setting):
            fit("tests.own_networks:Plain", table, SMALL, root=tmp_path / "runs", settings=[setting])


def test_balanced_sampling_and_weights(tmp_path: Path) -> None:
    from coattend.data import Split
    from coattend.tasks import Classification
    from coattend.train.batches import Examples, shuffled_batches

    labels = torch.tensor([0] * 90 + [1] * 10)
    examples = Examples(torch.zeros(100, 1), labels)
    drawn = torch.cat([y for epoch in range(20) for _, y, _ in shuffled_batches(examples, 25, 0, epoch, 0, 1, True)])
    assert 0.45 < drawn.double().mean() < 0.55
    task = Classification(("a", "b"))
    task.fit(Split(torch.zeros(100, 1, 1, 1, dtype=torch.uint8), labels), balanced=True)
    assert task.weights.tolist() == pytest.approx([100 / 180, 5.0])
    weighted = task.loss(torch.zeros(100, 2), labels)
    assert weighted.item() == pytest.approx(100 * np.log(2), rel=1e-5)  # the mean weight is 1


def test_starting_from_the_weights_of_another_run(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "cells", 20)
    first = fit("tests.own_networks:segmenter", top, SMALL, root=tmp_path, name="a", settings=["epochs=8"])
    start = [f"start={tmp_path / 'a' / 'seed0'}", "lr=1e-6", "epochs=1"]
    again = fit("tests.own_networks:segmenter", top, SMALL, root=tmp_path, name="b", settings=start)
    assert again.test_error == pytest.approx(first.test_error, abs=1)
    with pytest.raises(RunError, match=r"for \d% of the parameters only"):
        fit("tests.own_networks:segmenter:width=5", top, SMALL, root=tmp_path, name="c", settings=start)
    with pytest.raises(RunError, match="there is no file"):
        fit("tests.own_networks:segmenter", top, SMALL, root=tmp_path, name="c", settings=["start=nowhere"])


def test_wrong_data_end_before_training(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "cells", 12)
    write(top / "masks" / "003.png", np.full((12, 12), 9, np.uint8))
    with pytest.raises(DataError, match="expected class numbers"):
        fit("tests.own_networks:segmenter", top, SMALL, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_dark_files_of_16_bits_are_trained_on_and_predicted(tmp_path: Path) -> None:
    from PIL import Image

    from coattend.models.prediction import FilePrediction, predict_files

    for i in range(40):
        level = 20 + 60 * (i % 2)  # of 65535
        pixels = (np.random.RandomState(i).randint(0, 20, (8, 8)) + level).astype(np.uint16)
        path = tmp_path / "dark" / ("low", "high")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    result = fit("tests.own_networks:Plain", tmp_path / "dark", SMALL, root=tmp_path, name="d", settings=["epochs=15"])
    assert result.test_error == 0
    trained = load_trained(tmp_path / "d" / "seed0")
    answers = list(predict_files(trained, [tmp_path / "dark"]))
    assert all(isinstance(a, FilePrediction) and a.prediction.label == a.path.parent.name for a in answers)
