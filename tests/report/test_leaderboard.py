from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend import cli
from coattend.models.records import RunError
from coattend.report.leaderboard import COMPARED, EQUAL_SIZE, PLANNED, leaderboard_text, points, write_leaderboard
from coattend.report.ledger import counterpart
from coattend.train import RunFolder, changed, get_recipe, load_trained
from coattend.train import entry as entries_module
from coattend.train.entry import Entry, add_run, read_entries, relative_step, row_file
from coattend.train.evaluate import evaluate_classifier
from tests.train.records import record

ROOT = Path(__file__).parents[2]
TWIN, GATED = "e4cnn:generated=false", "p4cnn:attention=gate,head=max"


def entry(model: str, seed: int, error: float, turned: float, step: float = 1.0, **changes: object) -> Entry:
    run = record(model, "strong", seed, None, error, **changes)  # type: ignore[arg-type]
    return Entry(run, 4, turned, step)


def write(board: Path, *entries: Entry) -> Path:
    path = row_file(board, entries[0].record.result.kind)
    path.write_text("".join(json.dumps(one.to_dict()) + "\n" for one in entries))
    return path


def cells(board: Path) -> dict[str, list[str]]:
    tables, _, _ = leaderboard_text(board).partition("## Not run")
    lines = [line for line in tables.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].strip("| "): [cell.strip() for cell in line.strip("|").split("|")] for line in lines}


def test_errors_with_intervals_and_turned_ones_apart(tmp_path: Path) -> None:
    write(tmp_path, *(entry(COMPARED, n, e, e - 0.2) for n, e in enumerate((1.5, 1.6, 1.4))))
    write(tmp_path, *(entry(GATED, n, e, e, 1.5) for n, e in enumerate((1.0, 1.2, 1.1))))
    write(tmp_path, entry("e4cnn", 0, 1.3, 1.2), entry("e4cnn", 1, 1.1, 1.2))
    write(tmp_path, entry(TWIN, 0, 2.3, 2.0), entry(TWIN, 1, 2.1, 2.0))
    write(tmp_path, *(entry(EQUAL_SIZE[GATED], n, e, e) for n, e in enumerate((2.5, 2.6))))
    rows = cells(tmp_path)
    # By hand: Student's t with 2 degrees of freedom is 4.303, the deviation 0.1, so 4.303 * 0.1 / sqrt(3) = 0.248.
    network, changes, error, turned, gain, compared, other, equal, seeds, parameters, step, hours, _ = rows[GATED]
    assert (network, changes, error, turned) == (GATED, "", "1.10 [0.85, 1.35]", "1.10 [0.85, 1.35]")
    assert gain == "+0.00 [+0.00, +0.00] undecided"
    assert compared == "-0.40 [-0.65, -0.15] better"  # -0.5, -0.4, -0.3
    assert other == "the same"
    assert equal == "-1.45 [-2.09, -0.81] better"  # -1.5 and -1.4 with t = 12.706: 12.706 * 0.0707 / sqrt(2) = 0.635
    assert rows[COMPARED][7] == ""
    assert (seeds, parameters, step, hours) == ("3", "19,880", "1.50", "6.0")
    assert rows[COMPARED][3] == "1.30 [1.05, 1.55]"
    assert rows[COMPARED][4] == "-0.20 [-0.20, -0.20] better"
    assert rows["e4cnn"][6] == "-1.00 [-1.00, -1.00] better"  # against its static twin
    assert list(rows).index(GATED) < list(rows).index("e4cnn") < list(rows).index(COMPARED) < list(rows).index(TWIN)
    assert "This page is made of 12 runs, 24.0 hours of training." in leaderboard_text(tmp_path)
    assert rows[GATED][-1].startswith(f"`coattend leaderboard {GATED} --seeds 0,1,2 --board results/leaderboard")


def test_what_is_planned_and_not_run_has_its_command(tmp_path: Path) -> None:
    half = ("precision=bf16-mixed",)
    write(tmp_path, *(entry(COMPARED, seed, 1.5, 1.4) for seed in range(5)))
    write(tmp_path, entry(GATED, 2, 1.5, 1.4))
    write(tmp_path, *(entry(GATED, seed, 1.5, 1.4, settings=half) for seed in (1, 3)))
    (tmp_path / "reading.md").write_text("What it means.\n")
    text = leaderboard_text(tmp_path)
    assert "What it means." in text
    to_do = text[text.index("## Not run") :]
    for model in PLANNED:
        assert (f"| {model} | " in to_do) == (model != COMPARED)
    assert "| e4cnn | 0,1,2,3,4 | 18,118 | `coattend leaderboard e4cnn --seeds 0,1,2,3,4 --board" in to_do
    assert f"| `coattend leaderboard {GATED} --seeds 0,2,4 --set precision=bf16-mixed --board" in to_do


def test_settings_and_data_are_rows_of_their_own(tmp_path: Path) -> None:
    half = ("precision=bf16-mixed",)
    write(tmp_path, entry(COMPARED, 0, 1.5, 1.4))
    write(tmp_path, entry(COMPARED, 0, 1.6, 1.4, settings=half))
    write(tmp_path, entry(GATED, 0, 1.1, 1.4, settings=half))
    run = entry(COMPARED, 0, 2.5, 2.4)
    older = replace(run.record.result, provenance="generated from MNIST (seed 2020)")
    write(tmp_path, replace(run, record=replace(run.record, result=older, command=older.kind.command(0))))
    text = leaderboard_text(tmp_path)
    assert text.count("## rotated-mnist (") == 2
    assert "--data rotated-mnist-v1 " in text
    assert cells(tmp_path)[GATED][5] == "-0.50 [-1.00, -0.10] better, over images"  # against the same precision
    assert "--set precision=bf16-mixed" in cells(tmp_path)[GATED][-1]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("error", {"last": 1.2, "valid": None, "test_optimistic": None}, "15 wrong of 1000 are not 1.2%"),
        ("error", {"last": 1.5, "valid": 1.5, "test_optimistic": None}, "expected the last epoch"),
        ("command", "coattend train p4cnn", "command is to be 'coattend train p4cnn:head=max --data"),
        ("turned", {"turns": 4}, "turned.error is missing"),
        ("turned", None, "turned must be an object"),
        ("step", "fast", "step must be a finite number"),
        ("wrong", [-1], "wrong must be a list of whole numbers"),
    ],
)
def test_a_file_whose_figures_disagree_is_refused(tmp_path: Path, field: str, value: object, words: str) -> None:
    path = write(tmp_path, entry(COMPARED, 0, 1.5, 1.4))
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}) + "\n")
    with pytest.raises(RunError, match="line 1") as raised:
        read_entries(tmp_path)
    assert words in str(raised.value)


@pytest.mark.parametrize("second", [("e4cnn", 1), (COMPARED, 0)])
def test_a_file_holds_one_row(tmp_path: Path, second: tuple[str, int]) -> None:
    write(tmp_path, entry(COMPARED, 0, 1.5, 1.4), entry(*second, 1.5, 1.4))
    with pytest.raises(RunError, match="holds all runs of one network by one recipe"):
        read_entries(tmp_path)


def test_training_a_row_writes_its_file_the_page_and_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(entries_module, "ROUNDS", 1)
    settings = ("epochs=1", "train_images=64")
    runs, model = tmp_path / "runs", "z2cnn:width=3"
    cli.grids.leaderboard((model,), "1,0", data="mini", settings=settings, folder=runs)
    board = runs / "leaderboard"
    ((kind, entries),) = read_entries(board).items()
    assert (kind.model, kind.recipe, kind.data) == (model, "strong", "mini")
    assert [one.record.result.seed for one in entries] == [0, 1]
    recipe = changed(get_recipe("strong", model, "mini"), settings)
    folder = RunFolder.of(runs, model, recipe, 1)
    report = evaluate_classifier(str(folder.path), None, 4)
    assert report.turned is not None
    assert (entries[1].turned_error, entries[1].turns) == (report.turned.error, 4)
    assert entries[1].record == replace(folder.record(), source=entries[1].record.source)
    assert (board / "leaderboard.md").read_text() == leaderboard_text(board)
    assert (board / "assets" / "leaderboard.png").read_bytes()[1:4] == b"PNG"
    assert f"{model} seed 0: {entries[0].record.result.error.last:.2f}%, turned" in capsys.readouterr().out
    # a second time, nothing is measured again
    before = row_file(board, kind).stat().st_mtime_ns
    monkeypatch.setattr(entries_module, "measured_entry", None)
    assert add_run(board, folder) == entries[1]
    cli.grids.leaderboard((model,), "0,1", data="mini", settings=settings, folder=runs)
    assert row_file(board, kind).stat().st_mtime_ns == before


def test_weights_that_do_not_give_the_recorded_error_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(entries_module, "ROUNDS", 1)
    model, settings = "z2cnn:width=2", ["epochs=1", "train_images=32"]
    recipe = changed(get_recipe("strong", model, "mini"), settings)
    entries_module.train(model, recipe, 0, tmp_path, accelerator="cpu")
    folder = RunFolder.of(tmp_path, model, recipe, 0)
    trained = load_trained(folder.path)
    last = next(reversed(list(trained.network.parameters())))
    torch.nn.init.constant_(last, 0.0)
    torch.nn.init.constant_(list(trained.network.parameters())[-2], 0.0)
    trained.save(folder.last_weights)
    with pytest.raises(RunError, match=r"but result\.json says"):
        add_run(tmp_path / "board", folder)


def test_recipes_that_hold_images_back_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trains on all images, train_on=train\+valid, got house"):
        cli.grids.leaderboard(("p4cnn",), recipe="house", data="mini", folder=tmp_path)
    with pytest.raises(ValueError, match="leave out test_images=10"):
        cli.grids.leaderboard(("p4cnn",), data="mini", settings=("test_images=10",), folder=tmp_path)


def test_a_step_is_measured_relative_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(entries_module, "ROUNDS", 2)
    monkeypatch.setattr(entries_module, "BATCH", 16)
    assert relative_step("p4cnn", (1, 28, 28), "32-true") == 1
    assert relative_step("z2cnn:width=1", (1, 28, 28), "bf16-mixed") < 1


def test_the_picture_has_every_row(tmp_path: Path) -> None:
    write(tmp_path, entry(COMPARED, 0, 1.5, 1.4, 1.02), entry(COMPARED, 1, 1.7, 1.5, 1.04))
    write(tmp_path, entry("e4cnn", 0, 1.3, 1.2, 2.0))
    first, second = points(read_entries(tmp_path))
    assert (first.name, first.interval, first.step) == ("e4cnn", None, 2.0)
    assert (second.error, second.turned, second.step) == pytest.approx((1.6, 1.45, 1.03))
    write_leaderboard(tmp_path, tmp_path / "page.md")
    once = (tmp_path / "assets" / "leaderboard.png").read_bytes()
    write_leaderboard(tmp_path, tmp_path / "page.md")
    assert (tmp_path / "assets" / "leaderboard.png").read_bytes() == once


def test_networks_of_equal_size_have_equal_sizes() -> None:
    for names in EQUAL_SIZE.items():
        ours, other = (sum(p.numel() for p in ca.create_model(name).parameters()) for name in names)
        assert 0.95 < other / ours < 1.05


def test_counterparts() -> None:
    def of(model: str) -> str:
        return counterpart(entry(model, 0, 1, 1).record.result.kind).model

    assert of("e4cnn") == of(TWIN) == TWIN
    assert of("e4cnn:width=24") == "e4cnn:width=24,generated=false"
    assert of(GATED) == COMPARED


def test_the_committed_page_is_what_its_rows_say() -> None:
    board = ROOT / "results" / "leaderboard"
    assert (ROOT / "docs" / "leaderboard.md").read_text() == leaderboard_text(board)
    for kind, entries in read_entries(board).items():
        found = sum(p.numel() for p in ca.create_model(kind.model).parameters())
        assert {one.record.result.parameters for one in entries} == {found}
