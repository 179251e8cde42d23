from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import coattend as ca
from coattend import cli
from coattend.models.paper import TABLE_1
from coattend.report import ledger
from coattend.report.ledger import RUNS, collect, gpu_hours, ledger_text, write_ledger
from coattend.train import changed, get_recipe, train
from coattend.train.record import Record, read_records, write_records
from coattend.train.run import Errors
from tests.train.records import TESTED, record

ROOT = Path(__file__).parents[2]


def rows_in(folder: Path, *records: Record) -> dict[str, str]:
    """The lines of the page that these records make, by network, of the tables beside Table 1."""
    write_records(folder / RUNS, records)
    return {line.split("|")[1].strip(): line for line in ledger_text(folder).splitlines() if "compare" in line}


def write_run(folder: Path, run: Record) -> None:
    """A run folder with the result of a record, as written by versions that kept settings in the name."""
    result = run.result
    folder.mkdir(parents=True)
    values = {key: value for key, value in result.to_dict().items() if key != "settings"}
    name = result.kind.recipe_name
    (folder / "result.json").write_text(json.dumps({**values, "recipe": name}))
    about = {key: values[key] for key in ("model", "seed", "provenance", "parameters")}
    recipe = {"name": name, "data": result.data, "epochs": result.epochs}
    arithmetic = {} if run.arithmetic is None else {"arithmetic": run.arithmetic}
    (folder / "run.json").write_text(json.dumps({**about, "recipe": recipe, "versions": {}, **arithmetic}))
    labels = np.zeros(TESTED, np.uint16)
    read = np.isin(np.arange(TESTED), run.wrong).astype(np.uint16)
    np.savez_compressed(folder / "predictions.npz", labels=labels, last=read, valid=read)


def test_published_beside_measured_and_not_run_where_it_was_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number, run in enumerate(
        [
            record("p4cnn", "paper", 0, None, 2.30, arithmetic="x86_64 AVX2, 2 threads"),
            record("p4cnn", "paper", 1, None, 2.50, arithmetic="x86_64 AVX2, 2 threads"),
            record("a_p4cnn", "paper", 1, None, 2.00, arithmetic="x86_64 AVX2, 2 threads"),
            record("a_p4cnn:attention=output", "house", 0, 1.5, 1.6, settings=("lr=0.01",)),
            record("p4cnn:head=max", "paper", 0, None, 1.9),
        ]
    ):
        write_run(runs / f"run{number}", run)
    epochs = [
        {"epoch": 0, "train_loss": 0.25, "seconds": 3.0},
        {"epoch": 1, "train_loss": 1 / 8, "seconds": 3.0, "test_accuracy": 0.98123456},
    ]
    (runs / "run0" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in epochs))
    records = collect(runs, tmp_path / "ledger")
    assert [len(found.wrong) for found in records] == [23, 25, 20, 15, 19]
    assert records[0].curves == {"train_loss": (0.25, 0.125), "test_accuracy": (None, 0.98123)}
    collect(runs, tmp_path / "ledger")  # the same runs again change nothing
    page = tmp_path / "page.md"
    write_ledger(tmp_path / "ledger", page)
    text = page.read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "2.40 ± 0.14" in rows["p4-CNN"]
    assert "| 2.28 |" in rows["p4-CNN"]
    assert "2.0 |" in rows["p4-CNN"]  # hours
    assert "`coattend reproduce p4cnn --seeds 0,1`" in rows["p4-CNN"]
    # By hand: 5 of 1,000 images read better, none worse; resampled, nearly a Poisson number: 2.5% below 1 and above 10.
    assert "-0.50 [-1.00, -0.10] better, over images" in rows["a-p4-CNN"]
    for name in TABLE_1:
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
    assert ledger_text(tmp_path / "ledger") == text


def test_differences_are_paired_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    errors = {"p4cnn": (2.0, 2.1, 2.2, 9.9), "a_p4cnn:attention=output": (1.5, 1.7, 1.6), "a_p4cnn": (2.5,)}
    runs = [record(model, "house", n, e, 2 * e) for model, values in errors.items() for n, e in enumerate(values)]
    (tmp_path / "reading.md").write_text("What it means.")
    rows = rows_in(tmp_path, *runs)
    # By hand: differences -0.5, -0.4, -0.6, mean -0.5, deviation 0.1, Student's t with 2 degrees 4.303.
    assert "-0.50 [-0.75, -0.25] better" in rows["a_p4cnn:attention=output"]
    assert "-1.00 [-1.50, -0.50] better" in rows["a_p4cnn:attention=output"]  # twice that after the last epoch
    assert "+0.50 [+0.10, +1.00] worse, over images" in rows["a_p4cnn"]
    assert "--seeds 0,1,2,3" in rows["p4cnn"]
    assert "What it means." in ledger_text(tmp_path)


def test_a_recipe_that_changes_attention_alone_is_measured_against_the_usual_counterpart(tmp_path: Path) -> None:
    rows = rows_in(
        tmp_path,
        record("p4cnn", "house", 0, 2.5, 2.5, settings=("epochs=5",)),
        record("p4cnn", "house", 0, 3.0, 3.0),
        record("a_p4cnn:diagonal=0", "house", 0, 2.0, 2.0, settings=("attention_lr=4", "epochs=5")),
    )
    assert "| -0.50 [-1.00, -0.10] better, over images |" in rows["a_p4cnn:diagonal=0"]


def test_runs_of_two_provenances_are_two_rows_of_table_1(tmp_path: Path) -> None:
    generated = record("p4cnn", "paper", 0, None, 2.0)
    original = replace(
        generated, result=replace(generated.result, provenance="original", error=Errors(1.0, None, None))
    )
    write_records(tmp_path / RUNS, [generated, original])
    rows = [line for line in ledger_text(tmp_path).splitlines() if line.startswith("| p4-CNN")]
    assert [row.split("|")[3].strip() for row in rows] == ["2.00", "1.00"]


def test_runs_on_version_1_of_the_digits_are_apart_and_named_so(tmp_path: Path) -> None:
    runs = [record("p4cnn", "house", 0, 2.0, 2.0), record("a_p4cnn", "house", 0, 1.0, 1.0)]
    result = replace(runs[0].result, provenance="generated from MNIST (seed 2020)")
    rows = rows_in(tmp_path, replace(runs[0], result=result), runs[1])
    assert "--data rotated-mnist-v1 " in rows["p4cnn"]
    assert "--data rotated-mnist " in rows["a_p4cnn"]
    assert "over images" not in rows["a_p4cnn"]  # it has no counterpart on the same images
    assert " --data rotated-mnist-v1 " in result.kind.command(0)


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
    assert (ROOT / "docs" / "results.md").read_text() == ledger_text(ROOT / "results")


def test_settings_with_a_plus_sign_stay_whole(tmp_path: Path) -> None:
    settings = ("epochs=3", "train_on=train+valid")
    write_run(tmp_path / "runs" / "old", record("p4cnn", "house", 0, 2.0, 2.0, settings=settings))
    (run,) = collect(tmp_path / "runs", tmp_path / "ledger")
    assert run.result.settings == settings
    assert run.command.endswith("--recipe house --seed 0 --set epochs=3 --set train_on=train+valid")
    row = rows_in(tmp_path / "ledger", *read_records(tmp_path / "ledger" / RUNS))["p4cnn"]
    assert "--set epochs=3 --set train_on=train+valid`" in row
    assert "| epochs=3, train_on=train+valid |" in row


def test_runs_of_two_machines_are_not_paired(tmp_path: Path) -> None:
    machines = {"p4cnn": "AVX2", "a_p4cnn": "AVX512", "a_p4cnn:attention=output": "AVX2"}
    rows = rows_in(tmp_path, *(record(m, "house", 0, 2.0, 2.0, arithmetic=name) for m, name in machines.items()))
    assert "over images" not in rows["a_p4cnn"]
    assert "over images" in rows["a_p4cnn:attention=output"]


def test_one_run_is_one_run(tmp_path: Path) -> None:
    write_records(tmp_path / RUNS, [record("p4cnn", "paper", 0, None, 2.0)])
    text = ledger_text(tmp_path)
    assert "This page is made of 1 run, 2.0 hours" in text
    assert "By arithmetic: not recorded: 1 run.\n" in text


def test_reproduce_shows_a_table_and_leaves_the_published_ledger_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    own = tmp_path / "own"
    own.mkdir()
    write_records(own / RUNS, [record("z2cnn", "paper", 0, None, 5.25)])
    monkeypatch.setattr(ledger, "OWN_LEDGER", own)
    small = ("data=mini", "epochs=1", "train_images=32", "test_images=20", "equivariance_every=0")
    other = changed(get_recipe("quick", "p4cnn"), ["epochs=1", "train_images=32", "test_images=20"])
    train("p4cnn:width=1", other, 0, "runs")  # not asked for
    assert cli.grids.reproduce(("z2cnn",), settings=small) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (row,) = (words for words in lines if words[:2] == ["z2cnn", "5.03"])
    (run,) = read_records(tmp_path / "runs" / "ledger" / RUNS)
    error = run.result.error.last
    assert row == ["z2cnn", "5.03", "5.25", f"{error:.2f}", f"{error - 5.03:+.2f}"]
    assert (tmp_path / "runs" / "ledger" / "results.md").is_file()
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("network", "twin", "printed"),
    [
        ("p4cnn:attention=gate,head=max", "p4cnn:head=max,width=11", "-0.15 [-0.24, -0.06]"),
        ("e4cnn", "e4cnn:width=26,generated=false", "+0.50 [+0.38, +0.63]"),
    ],
)
def test_gains_in_words_are_those_of_the_runs(network: str, twin: str, printed: str) -> None:
    errors: dict[str, dict[int, float]] = {network: {}, twin: {}}
    for line in (ROOT / "results" / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        if run["model"] in errors and (run["recipe"], run["settings"]) == ("house", ["precision=bf16-mixed"]):
            errors[run["model"]][run["seed"]] = run["error"]["last"]
    assert sorted(errors[network]) == sorted(errors[twin]) == [0, 1, 2, 3, 4]
    gains = [errors[network][seed] - errors[twin][seed] for seed in range(5)]
    mean, half = statistics.mean(gains), 2.776 * statistics.stdev(gains) / 5**0.5  # Student, 4 degrees of freedom
    assert f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]" == printed
    assert printed in (ROOT / "docs" / "results.md").read_text()
