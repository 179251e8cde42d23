"""The report: its numbers are those of the run folders, and the same runs give the same bytes."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.cli import main
from coattend.data import load_data
from coattend.data.augmentation import rotate_batch
from coattend.models import create_model
from coattend.models.classifier import Classifier
from coattend.nn.observe import evaluating, multiply_adds
from coattend.report import co_occurrence
from coattend.report.curves import (
    AFFORDABLE,
    ANGLES,
    FEWEST,
    MOST,
    affordable_images,
    error_by_angle,
    repeats,
)
from coattend.report.page import PICTURED, write_report
from coattend.report.runs import contests, find_runs
from coattend.train import Result, Row, RunFolder, load_trained
from coattend.train.row import difference, paired
from tests.report.page_tables import Tables
from tests.runs import ATTENTIVE, CONVENTIONAL, PLAIN, run_folder


@pytest.fixture(scope="module")
def trained(trained_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, because the page is written into it."""
    return copy_of(trained_runs / "runs", tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(trained: Path) -> str:
    return write_report([trained]).read_text()


@pytest.fixture
def copied(trained_runs: Path, tmp_path: Path) -> Path:
    return copy_of(trained_runs / "runs", tmp_path)


def copy_of(runs: Path, folder: Path) -> Path:
    return Path(shutil.copytree(runs, folder / "runs", ignore=shutil.ignore_patterns("tensorboard")))


def result_of(root: Path, model: str, seed: int = 0) -> Result:
    return Result.read(run_folder(root, model, seed) / "result.json")


def test_errors_and_intervals_are_those_of_the_run_folders(trained: Path, page: str) -> None:
    (rows,) = Tables(page).named("errors")
    lines = {row[0][1]: dict(row) for row in rows}
    assert list(lines) == [CONVENTIONAL, ATTENTIVE, PLAIN]  # the comparison's order, then that of Table 1
    for model, seeds in ((CONVENTIONAL, (0, 1)), (ATTENTIVE, (0, 1)), (PLAIN, (0,))):
        results = [result_of(trained, model, seed) for seed in seeds]
        errors = [result.test_error for result in results]
        line = lines[model]
        assert line["errors"] == ", ".join(f"{e:.2f} (seed {seed})" for seed, e in zip(seeds, errors, strict=True))
        assert line["seeds"] == str(len(seeds))
        assert line["mean"].split(" ± ")[0] == f"{statistics.fmean(errors):.2f}"
        assert line["parameters"] == f"{results[0].parameters:,}"
        assert line["seconds"] == f"{statistics.median(r.seconds_per_epoch for r in results):.1f}"
        if model != CONVENTIONAL:
            sides = (
                Row(tuple(RunFolder(run_folder(trained, m, seed)).record() for seed in seeds))
                for m in (CONVENTIONAL, model)
            )
            delta = difference(paired(*sides))
            assert line["difference"] == f"{delta.mean:+.2f}"
            assert line["interval"] == f"{delta.low:+.2f} to {delta.high:+.2f}"
            assert line["verdict"] == delta.verdict
    assert lines[CONVENTIONAL]["difference"] == ""


def test_confusions_are_counted_from_the_predictions(trained: Path, page: str) -> None:
    for model, seeds in ((ATTENTIVE, (0, 1)), (PLAIN, (0,))):
        (rows,) = Tables(page).named("confusion", model=model)
        shown = np.array([[int(text or 0) for field, text in row if field == "td"] for row in rows])
        expected = np.zeros((10, 10), dtype=int)
        for seed in seeds:
            with np.load(run_folder(trained, model, seed) / "predictions.npz") as arrays:
                protocol = result_of(trained, model, seed).protocol
                for label, said in zip(arrays["labels"], arrays[protocol], strict=True):
                    expected[label, said] += 1
        assert np.array_equal(shown, expected)
        wrong = 100 * (1 - expected.trace() / expected.sum())
        assert wrong == pytest.approx(np.mean([result_of(trained, model, s).test_error for s in seeds]))


def test_recorded_equivariance_recipe_and_commands(trained: Path, page: str) -> None:
    for model in (CONVENTIONAL, ATTENTIVE, PLAIN):
        (rows,) = Tables(page).named("equivariance", model=model)
        assert dict(rows[0])["recorded"] == f"{result_of(trained, model).equivariance_error:.1e}"
        errors = [float(text) for field, text in rows[0] if field == "td"]
        assert len(errors) == 4
        assert max(errors) < 1e-12 if model != PLAIN else max(errors) > 1e-3
    (rows,) = Tables(page).named("recipe")
    shown = {row[0][1]: row[1][1] for row in rows}
    recipe = json.loads((run_folder(trained, PLAIN) / "run.json").read_text())["recipe"]
    assert set(shown) == set(recipe) - {"name", "settings"}
    assert shown["lr"] == str(recipe["lr"])
    assert "--set epochs=2 --set equivariance_every=1 --set test_images=60 --set train_images=64" in page
    assert "coattend report . --to report.html" in page


def test_envelopes_on_the_page_are_those_of_the_function(trained: Path, page: str) -> None:
    network = load_trained(run_folder(trained, ATTENTIVE))
    images = network.preprocessing(load_data("mini").test.images[:100])
    (rows,) = Tables(page).named("envelope", model=ATTENTIVE)
    envelopes = co_occurrence(network.network, images)
    assert len(rows) == len(envelopes) == 7
    for row, envelope in zip(rows, envelopes.values(), strict=True):
        shown = [text.split() for field, text in row if field == "td"]
        means = (envelope.mean(envelope.attention), envelope.mean(envelope.responses))
        assert shown == [[f"{a:.3f}", f"{r:.3f}"] for a, r in zip(*means, strict=True)]
    (channels,) = Tables(page).named("envelope-channels", model=ATTENTIVE)
    assert len(channels) == 6 * 2 + 10
    assert Tables(page).named("envelope", model=PLAIN) == []


def test_the_same_runs_give_the_same_bytes_wherever_they_lie(copied: Path, page: str, tmp_path: Path) -> None:
    made = write_report([copied])
    assert made == copied / "report.html"
    assert made.read_text() == page
    assert str(tmp_path) not in page


def test_the_page_stands_alone(page: str) -> None:
    for reference in ("http://www.w3.org", "http://purl.org", "http://creativecommons.org"):
        page = page.replace(reference, "")  # names of XML vocabularies, never fetched
    for outside in ("http://", "https://", "<script", "@import", "url(", '<link rel="stylesheet'):
        assert outside not in page.replace("url(#", "")


def test_a_curve_that_is_repeated_is_the_curve_that_would_be_measured(trained: Path) -> None:
    data = load_data("mini").test
    images, labels = data.images[:24], data.labels[:24]
    for model, exact in ((ATTENTIVE, True), (PLAIN, False)):
        network = load_trained(run_folder(trained, model))
        assert repeats(network) is exact
        curve = error_by_angle(network, images, labels)
        for place in (0, 5, 20, 43, 71):
            quarter, rest = divmod(ANGLES[place], 90)
            tilted = rotate_batch(images.float(), torch.full((24,), math.radians(rest), dtype=torch.float32))
            turned = torch.rot90(tilted.clamp(0, 255), quarter, (-2, -1))
            with evaluating(network.network):
                read = network.network(network.preprocessing(turned)).argmax(1)
            assert curve[place] == pytest.approx(100 * (read != labels).double().mean().item())


def verb(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["coattend", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_two_data_sets_side_by_side_and_pictures_in_a_folder(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_data("mini").test
    np.savez(tmp_path / "other.npz", images=data.images[:200, 0].numpy(), labels=data.labels[:200].numpy())
    page, folder = tmp_path / "both.html", tmp_path / "pictures"
    data_sets = ("--envelope-data", f"mini,{tmp_path / 'other.npz'}")
    assert (
        verb(monkeypatch, "report", run_folder(copied, ATTENTIVE), "--to", page, "--pictures", folder, *data_sets) == 0
    )
    assert "both.html" in capsys.readouterr().out
    made = page.read_text()
    assert len(Tables(made).named("envelope", model=ATTENTIVE)) == 2
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"envelopes.png", "envelopes.svg", "angles.svg", "learning_valid_accuracy.png"} <= names
    assert (tmp_path / "pictures" / "envelopes.png").read_bytes()[:4] == b"\x89PNG"


def test_unfinished_runs_and_missing_weights_are_told(copied: Path) -> None:
    plain, attentive = run_folder(copied, PLAIN), run_folder(copied, ATTENTIVE)
    (plain / "result.json").unlink()
    for seed in (0, 1):
        for name in ("best.safetensors", "last.safetensors"):
            (run_folder(copied, ATTENTIVE, seed) / name).unlink()
    made = write_report([copied]).read_text()
    where = plain.relative_to(copied)
    assert f"{PLAIN}, seed 0, in {where}: unfinished, 2 of 2 epochs; the same command continues it." in made
    assert f"{ATTENTIVE}, seed 1, in {attentive.relative_to(copied).with_name('seed1')}: its weights (best" in made
    (rows,) = Tables(made).named("errors")
    lines = {row[0][1]: dict(row) for row in rows}
    assert lines[PLAIN]["mean"] == "unfinished"
    assert lines[ATTENTIVE]["errors"] != ""
    assert Tables(made).named("equivariance", model=ATTENTIVE) == []
    (attentive / "predictions.npz").unlink()
    shutil.rmtree(run_folder(copied, ATTENTIVE, 1))
    (contest,) = contests(find_runs([copied])[0])
    assert "predictions.npz of both runs is needed" in contest.contestants[1].note


def test_runs_without_a_common_seed_are_not_compared(copied: Path) -> None:
    shutil.rmtree(run_folder(copied, CONVENTIONAL, 0))
    (contest,) = contests(find_runs([copied])[0])
    plain = contest.contestants[2]
    assert plain.note == "not compared: no seed in common with the first network"
    assert plain.row.against_first is None


def test_data_that_is_gone_costs_the_pictures_only(copied: Path) -> None:
    description = run_folder(copied, PLAIN) / "run.json"
    run = json.loads(description.read_text())
    run["recipe"]["data"] = "gone/images.npz"
    description.write_text(json.dumps(run))
    made = write_report([description.parent], copied / "one.html").read_text()
    assert "no pictures, because its data cannot be loaded" in made
    assert Tables(made).named("errors") != []


def test_verbs_end_mistakes_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb(monkeypatch, "report", tmp_path) == 2
    assert "train first" in capsys.readouterr().err
    assert verb(monkeypatch, "attend", tmp_path, tmp_path / "digit.png") == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_mistakes_are_explained(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="report expects run folders"):
        write_report([])
    with pytest.raises(ValueError, match="there is no folder"):
        write_report([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no run\.json in it or below; train first"):
        write_report([tmp_path / "empty"])
    with pytest.raises(ValueError, match="unknown dataset 'minii'"):
        write_report([copied], envelope_data=["minii"])
    with pytest.raises(ValueError, match="there is no folder .* to write"):
        write_report([run_folder(copied, PLAIN)], tmp_path / "nowhere" / "report.html")
    plain = run_folder(copied, PLAIN)
    (plain / "result.json").write_text("{")
    with pytest.raises(ValueError, match="none of the runs can be read"):
        write_report([plain])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "null"),
        ("run.json", '{"model": "p4cnn"}'),
        ("run.json", "[" * 100_000),
        ("result.json", '{"error": null}'),
        ("metrics.jsonl", "null\n"),
        ("predictions.npz", "no archive"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(copied: Path, name: str, content: str) -> None:
    plain = run_folder(copied, PLAIN)
    (plain / name).write_text(content)
    runs, damaged = find_runs([copied])
    assert {run.model for run in runs} == {CONVENTIONAL, ATTENTIVE}
    (line,) = damaged
    assert line.startswith(f"Skipped a run: {plain / name} is damaged")


def test_a_run_of_an_unknown_network_is_left_out(copied: Path) -> None:
    description = run_folder(copied, PLAIN) / "run.json"
    description.write_text(description.read_text().replace(PLAIN, "q4cnn"))
    runs, (line,) = find_runs([copied])
    assert len(runs) == 4
    assert "unknown model 'q4cnn'" in line


def test_a_damaged_comparison_costs_the_order_only(copied: Path) -> None:
    (copied / "comparison.json").write_text('{"rows": null}')
    runs, (line,) = find_runs([copied])
    assert len(runs) == 5
    assert line.startswith(f"Networks are in the order of Table 1: {copied / 'comparison.json'} is damaged")


def test_what_is_left_out_is_said_in_the_terminal_and_on_the_page(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_folder(copied, CONVENTIONAL, 1))
    damaged = run_folder(copied, CONVENTIONAL) / "result.json"
    damaged.write_text("{}")
    for seed in (0, 1):
        for weights in ("best.safetensors", "last.safetensors"):
            (run_folder(copied, ATTENTIVE, seed) / weights).unlink()
    assert verb(monkeypatch, "report", copied) == 0
    line = f"Skipped a run: {damaged} is damaged"
    assert line in capsys.readouterr().out
    made = (copied / "report.html").read_text()
    assert line in made
    (rows,) = Tables(made).named("errors")
    assert [row[0][1] for row in rows] == [ATTENTIVE, PLAIN]


def test_predictions_of_other_classes_cost_the_matrix_only(copied: Path) -> None:
    plain = run_folder(copied, PLAIN)
    with np.load(plain / "predictions.npz") as arrays:
        np.savez(plain / "predictions.npz", **{name: arrays[name] + 100 for name in arrays.files})
    made = write_report([plain]).read_text()
    assert f"{PLAIN}: no confusion matrix, because predictions.npz has other classes." in made
    assert Tables(made).named("confusion") == []


def test_damaged_weights_cost_the_pictures_only(copied: Path) -> None:
    plain = run_folder(copied, PLAIN)
    for weights in ("best.safetensors", "last.safetensors"):
        (plain / weights).write_bytes(b"damaged")
    made = write_report([plain]).read_text()
    assert "no pictures, because its weights cannot be loaded" in made
    assert Tables(made).named("errors") != []


def test_targets_are_checked_before_the_work(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coattend.report.page.contests", lambda runs: pytest.fail("the work has begun"))
    with pytest.raises(ValueError, match="cannot write /proc/x.html"):
        write_report([copied], Path("/proc/x.html"))
    (tmp_path / "afile").touch()
    with pytest.raises(ValueError, match="afile is a file; expected the name of a folder"):
        write_report([copied], pictures=tmp_path / "afile")


def test_a_plus_sign_in_a_setting_stays_in_the_command(copied: Path) -> None:
    description = run_folder(copied, PLAIN) / "run.json"
    run = json.loads(description.read_text())
    run["recipe"] |= {"name": "quick+train_on=train+valid+epochs=2", "settings": []}  # as older versions wrote it
    description.write_text(json.dumps(run))
    (found,) = find_runs([description.parent])[0]
    assert found.run.command.endswith("--recipe quick --seed 0 --set epochs=2 --set train_on=train+valid")
    assert len(contests(find_runs([copied])[0])) == 2


def test_the_cost_of_a_page_does_not_grow_with_the_number_of_runs(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):  # two recipes more, with a network each
        other = Path(shutil.copytree(run_folder(copied, PLAIN), copied / f"other{number}" / "seed0"))
        run = json.loads((other / "run.json").read_text())
        run["recipe"]["settings"] = [f"epochs={number}"]
        (other / "run.json").write_text(json.dumps(run))
    loaded = []
    monkeypatch.setattr("coattend.report.page.load_trained", lambda file: loaded.append(file) or load_trained(file))
    made = write_report([copied]).read_text()
    assert len(Tables(made).named("errors")) == 3
    assert len(loaded) == len(Tables(made).named("equivariance")) == PICTURED
    assert "Pictures are of the first 4 networks" in made


def test_curves_by_angle_of_all_networks_together_are_affordable(trained_runs: Path) -> None:
    small = load_trained(run_folder(trained_runs, ATTENTIVE))
    assert affordable_images(small, 1) == MOST
    large = Classifier(create_model("a_p4cnn:width=24"), small.preprocessing, small.classes, small.image_shape)
    for networks in (1, 4):
        angles = len(ANGLES) // (4 if repeats(large) else 1)
        cost = networks * angles * sum(multiply_adds(large.network, large.image_shape).values())
        images = affordable_images(large, networks)
        assert FEWEST < images < MOST
        assert images * cost <= AFFORDABLE < (images + 1) * cost
