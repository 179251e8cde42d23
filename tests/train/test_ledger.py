from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import coattend as ca
from coattend import cli
from coattend.train import changed, collect, get_recipe, reproduction, train, write_ledger
from coattend.train.cost import gpu_hours
from coattend.train.ledger import ledger_text, recipe_of

TESTED = 1_000


def result(model: str, recipe: str, seed: int, valid: float | None, last: float) -> dict:
    """As in a ledger; the first test images are the ones read wrongly."""
    mistakes = round((last if valid is None else valid) * TESTED / 100)
    return {
        "model": model, "seed": seed, "provenance": "generated from MNIST (seed 2020)", "parameters": 19880,
        "recipe": recipe, "data": "rotated-mnist", "epochs": 3, "seconds": 7200.0, "seconds_per_epoch": 72.0,
        "error": {"last": last, "valid": valid, "test_optimistic": 2.0},
        "valid_epoch": None, "valid_error": None, "equivariance_error": None,
        "tested": TESTED, "wrong": " ".join(str(image) for image in range(mistakes)),
    }  # fmt: skip


def test_published_beside_measured_and_not_run_where_it_was_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number, r in enumerate(
        [
            result("p4cnn", "paper", 0, None, 2.30),
            result("p4cnn", "paper", 1, None, 2.50),
            result("a_p4cnn", "paper", 1, None, 2.00),
            result("a_p4cnn:attention=output", "house+lr=0.01", 0, 1.5, 1.6),
            result("p4cnn:head=max", "paper", 0, None, 1.9),
        ]
    ):
        folder = runs / f"run{number}"
        folder.mkdir(parents=True)
        mistakes = [int(image) for image in r["wrong"].split()]
        (folder / "result.json").write_text(json.dumps({k: v for k, v in r.items() if k not in ("tested", "wrong")}))
        made_by = {"arithmetic": "x86_64 AVX2, 2 threads"} if number < 3 else {"machine": "kept by older versions"}
        about = {key: r[key] for key in ("model", "seed", "provenance", "parameters")}
        recipe = {key: r[name] for key, name in (("name", "recipe"), ("data", "data"), ("epochs", "epochs"))}
        (folder / "run.json").write_text(json.dumps({**about, "recipe": recipe, "versions": {}, **made_by}))
        labels = np.zeros(TESTED, np.uint16)
        read = np.isin(np.arange(TESTED), mistakes).astype(np.uint16)
        np.savez_compressed(folder / "predictions.npz", labels=labels, last=read, valid=read)
    epochs = [
        {"epoch": 0, "train_loss": 0.25, "seconds": 3.0},
        {"epoch": 1, "train_loss": 1 / 8, "seconds": 3.0, "test_accuracy": 0.981},
    ]
    (runs / "run0" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in epochs))
    written = [json.loads(path.read_text()) for path in collect(runs, tmp_path)]
    assert [len(kept["wrong"].split()) for kept in written] == [23, 25, 20, 15, 19]
    assert written[0]["curves"] == {"train_loss": "0.25 0.125", "test_accuracy": "- 0.981"}
    text = write_ledger(tmp_path).read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "2.40 ± 0.14" in rows["p4-CNN"]
    assert "| 2.28 |" in rows["p4-CNN"]
    assert "2.0 |" in rows["p4-CNN"]  # hours
    assert "`coattend reproduce p4cnn --seeds 0,1`" in rows["p4-CNN"]
    # By hand: 5 of 1,000 images read better, none worse; resampled, nearly a Poisson number: 2.5% below 1 and above 10.
    assert "-0.50 [-1.00, -0.10] better, over images" in rows["a-p4-CNN"]
    for name in ca.list_models():
        row = rows[ca.model_entry(name).title]
        assert f"`coattend reproduce {name}" in row
        assert ("| not run |" in row) == (name not in ("p4cnn", "a_p4cnn"))
    assert "--recipe house" in rows["a_p4cnn:attention=output"]
    assert "--set lr=0.01" in rows["a_p4cnn:attention=output"]
    # what is no row of Table 1 is beside it, not in it: two seeds above, one here
    assert "| 2.28 |  |  | 1.90 |" in rows["p4cnn:head=max"]
    assert "`coattend compare p4cnn:head=max --recipe paper --data rotated-mnist --seeds 0`" in rows["p4cnn:head=max"]
    assert "This page is made of 5 runs, 10.0 hours of training." in text
    assert "By arithmetic: not recorded: 2 runs; x86_64 AVX2, 2 threads: 3 runs." in text
    assert ledger_text(tmp_path / "results") == text


def test_differences_are_paired_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    errors = {"p4cnn": (2.0, 2.1, 2.2, 9.9), "a_p4cnn:attention=output": (1.5, 1.7, 1.6), "a_p4cnn": (2.5,)}
    for model, values in errors.items():
        for seed, error in enumerate(values):
            (folder / f"{model}-{seed}.json").write_text(json.dumps(result(model, "house", seed, error, 2 * error)))
    (folder / "reading.md").write_text("What it means.")
    text = ledger_text(folder)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if "compare" in line}
    # By hand: differences -0.5, -0.4, -0.6, mean -0.5, deviation 0.1, Student's t with 2 degrees 4.303.
    assert "-0.50 [-0.75, -0.25] better" in rows["a_p4cnn:attention=output"]
    assert "-1.00 [-1.50, -0.50] better" in rows["a_p4cnn:attention=output"]  # twice that after the last epoch
    assert "+0.50 [+0.10, +1.00] worse, over images" in rows["a_p4cnn"]
    assert "--seeds 0,1,2,3" in rows["p4cnn"]
    assert "What it means." in text


def test_a_recipe_that_changes_attention_alone_is_measured_against_the_usual_counterpart(tmp_path: Path) -> None:
    for model, recipe in (
        ("p4cnn", "house+epochs=5"),
        ("p4cnn", "house"),
        ("a_p4cnn:diagonal=0", "house+attention_lr=4+epochs=5"),
    ):
        error = 3.0 if recipe == "house" else 2.5 if model == "p4cnn" else 2.0
        (tmp_path / f"{recipe}-{model}.json").write_text(json.dumps(result(model, recipe, 0, error, error)))
    (row,) = (line for line in ledger_text(tmp_path).splitlines() if line.startswith("| a_p4cnn:diagonal=0"))
    assert "| -0.50 [-1.00, -0.10] better, over images |" in row


def test_runs_of_another_machine_stand_beside_those_of_the_same_seeds_and_count_nowhere_else(tmp_path: Path) -> None:
    def keep(folder: Path, model: str, seed: int, error: float) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{model}-{seed}.json").write_text(json.dumps(result(model, "house", seed, error, error / 2)))

    for seed, error in enumerate((2.0, 2.2, 9.0)):
        keep(tmp_path, "p4cnn", seed, error)
    counted = ledger_text(tmp_path)
    for seed, error in enumerate((4.0, 4.4)):
        keep(tmp_path / "other_machine", "p4cnn", seed, error)
    keep(tmp_path / "other_machine", "z2cnn", 0, 6.0)  # not made again
    text = ledger_text(tmp_path)
    assert text.startswith(counted)
    assert "| p4cnn | house | 0,1 | 4.20 ± 0.28 | 2.10 ± 0.14 | 2.10 ± 0.14 | 1.05 ± 0.07 |" in text
    assert "another machine" not in counted
    assert "| z2cnn | house" not in text


def test_gpu_hours_are_what_the_convolutions_need() -> None:
    # By hand, multiply-adds per image of p4-CNN, layer by layer; 12,000 images, 100 epochs, 6 operations each.
    planes = 40
    per_image = (
        9 * planes * 26**2
        + 9 * planes * planes * (24**2 + 10**2 + 8**2 + 6**2 + 4**2)
        + 16 * planes * 10  # the projection
    )
    assert gpu_hours("p4cnn") == pytest.approx(per_image * 12_000 * 100 * 6 / 5e12 / 3600, rel=1e-12)
    assert gpu_hours("p4_allcnn") > 100 * gpu_hours("p4cnn")


def test_the_committed_ledger_is_what_its_results_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "results.md").read_text() == ledger_text(docs / "results")


def test_settings_with_a_plus_sign_stay_whole(tmp_path: Path) -> None:
    recipe = "house+epochs=3+train_on=train+valid"
    old, new = result("p4cnn", recipe, 0, 2.0, 2.0), result("z2cnn", recipe, 0, 2.0, 2.0)
    for r in (old, {**new, "settings": ["epochs=3", "train_on=train+valid"]}):
        (tmp_path / f"{r['model']}.json").write_text(json.dumps(r))
        assert recipe_of(r) == ("house", ["epochs=3", "train_on=train+valid"])
    rows = [line for line in ledger_text(tmp_path).splitlines() if line.startswith(("| p4cnn", "| z2cnn"))]
    assert len(rows) == 2
    assert all("--set epochs=3 --set train_on=train+valid`" in row for row in rows)
    assert all("| epochs=3, train_on=train+valid |" in row for row in rows)


def test_runs_of_two_machines_are_not_paired(tmp_path: Path) -> None:
    runs = {"p4cnn": "AVX2", "a_p4cnn": "AVX512", "a_p4cnn:head=mean": "AVX2"}
    for model, arithmetic in runs.items():
        kept = {**result(model, "house", 0, 2.0, 2.0), "arithmetic": arithmetic}
        (tmp_path / f"{model}.json").write_text(json.dumps(kept))
    rows = {line.split("|")[1].strip(): line for line in ledger_text(tmp_path).splitlines() if "compare" in line}
    assert "over images" not in rows["a_p4cnn"]


def test_one_run_is_one_run(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(result("p4cnn", "paper", 0, None, 2.0)))
    text = ledger_text(tmp_path)
    assert "This page is made of 1 run, 2.0 hours" in text
    assert "By arithmetic: not recorded: 1 run.\n" in text


def test_reproduce_shows_a_table_and_leaves_the_published_ledger_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    own.mkdir()
    (own / "z2cnn.json").write_text(json.dumps(result("z2cnn", "paper", 0, None, 5.25)))
    monkeypatch.setattr(reproduction, "OWN_RESULTS", own)
    small = ("data=mini", "epochs=1", "train_images=32", "test_images=20", "equivariance_every=0")
    other = changed(get_recipe("quick", "p4cnn"), ["epochs=1", "train_images=32", "test_images=20"])
    train("p4cnn:width=1", other, 0, "runs")  # not asked for
    assert cli.reproduce(("z2cnn",), settings=small) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (row,) = (words for words in lines if words[:2] == ["z2cnn", "5.03"])
    (kept,) = (tmp_path / "runs" / "ledger" / "results").glob("*.json")
    error = json.loads(kept.read_text())["error"]["last"]
    assert row == ["z2cnn", "5.03", "5.25", f"{error:.2f}", f"{error - 5.03:+.2f}"]
    assert not (tmp_path / "docs").exists()
