"""The ledger: published beside measured for every row of Table 1, written from the results of finished runs."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coattend._files import write_atomically
from coattend.models import list_models, model_entry
from coattend.train.comparison import over_images, over_seeds, wrong_images
from coattend.train.cost import gpu_hours
from coattend.train.identity import is_named
from coattend.train.outcome import headline
from coattend.train.recipe import settings_of
from coattend.train.recipes import PAPER
from coattend.train.run_files import read_ledger_result, read_result
from coattend.train.run_folder import RunFolder

HEADER = """# Results

Written by `coattend reproduce` from the JSON files in `docs/results/`; not by hand. Errors are test errors in
percent. "last" is the error after the last epoch, "valid" that of the epoch chosen on the validation images, "test"
that of the best epoch on the test images themselves: optimistic, and shown only because others report it. The figures
in parentheses are the authors' own runs of other people's networks. Differences are paired over seeds, with a 95%
interval; with a single seed, over the test images, which says nothing of what another seed would give. Each command
needs `coattend data fetch rotated-mnist` (or `cifar10`) once; it resumes what was stopped, and `coattend reproduce
--ledger docs` writes this page again from the finished runs in `runs`. "published" stands for the paper's own
protocol, whatever the table it is printed in. GPU hours are estimates: the multiply-adds of all convolutions of the
whole training, forward and backward, at a sustained 5e12 operations a second, and nothing else.
"""
ELSEWHERE = "other_machine"
ABOUT_ATTENTION = ("attention=", "structure=", "position=", "diagonal=", "attention_lr=", "decay_attention=")


def collect(runs: Path, ledger: Path, rows: Sequence[str] = ()) -> list[Path]:
    """Put the results of finished runs below ``runs`` into ``ledger/results``; returns what was written.

    Only runs on data sets with a name, and, if ``rows`` are given, only those of these networks by the paper's recipe.
    With a result go the numbers of the test images that were misclassified, so that two runs can be compared image by
    image, and what was measured after every epoch.
    """
    written: list[Path] = []
    (ledger / "results").mkdir(parents=True, exist_ok=True)
    for path in sorted(runs.rglob("result.json")):
        result = read_result(path)
        asked = not rows or (result["model"] in rows and recipe_of(result)[0] == "paper")
        if not (asked and is_named(result["data"])):
            continue
        relative = path.parent.relative_to(runs)
        target = ledger / "results" / (re.sub(r"[^\w.,=+-]+", "_", "-".join(relative.parts)) + ".json")
        folder = RunFolder(path.parent)
        wrong = wrong_images(folder)
        mistakes = {"tested": len(wrong), "wrong": " ".join(str(image) for image in wrong.nonzero()[0])}
        made_by = {"arithmetic": folder.description.get("arithmetic")}  # runs begun before it was kept have none
        kept = result | made_by | mistakes | {"curves": curves(folder.history())}
        write_atomically(target, (json.dumps(kept, indent=1) + "\n").encode())
        written.append(target)
    return written


def curves(history: list[dict[str, Any]]) -> dict[str, str]:
    """Each measure after every epoch, or ``-`` where it was not taken, in one line of text."""
    return {
        measure: " ".join(f"{line[measure]:.5g}" if measure in line else "-" for line in history)
        for measure in ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "test_accuracy")
        if any(measure in line for line in history)
    }


def write_ledger(ledger: Path) -> Path:
    """Write results.md from the JSON files beside it."""
    target = ledger / "results.md"
    write_atomically(target, ledger_text(ledger / "results").encode())
    return target


def ledger_text(results_folder: Path) -> str:
    """The whole of results.md; what it means, in words, is kept beside the results in reading.md."""
    results = read_results(results_folder)
    reading = results_folder / "reading.md"
    words = [reading.read_text()] if reading.is_file() else []
    hours = sum(r["seconds"] for r in results) / 3600
    runs = "1 run" if len(results) == 1 else f"{len(results)} runs"
    spent = f"This page is made of {runs}, {hours:.1f} hours of training."
    tables = [
        _paper_table(results),
        *_other_tables(results),
        *_made_again(results, read_results(results_folder / ELSEWHERE)),
    ]
    return "\n".join([HEADER, spent, _made_by(results), *words, *tables]) + "\n"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What a folder of the ledger holds, in the order of the files' names."""
    return [read_ledger_result(path) for path in sorted(folder.glob("*.json"))]


def _made_by(results: list[dict[str, Any]]) -> str:
    """On which arithmetic how many runs were made: with the same one a command gives the same figures again."""
    runs = Counter(r.get("arithmetic") or "not recorded" for r in results)
    return "By arithmetic: " + "; ".join(_counted(name, count) for name, count in sorted(runs.items())) + ".\n"


def _counted(name: str, runs: int) -> str:
    return f"{name}: {runs} run{'s' if runs > 1 else ''}"


def recipe_of(result: dict[str, Any]) -> tuple[str, list[str]]:
    """The recipe's own name and what was changed; results of older versions have both in one name."""
    settings = result.get("settings")
    if settings is None:
        return settings_of(result["recipe"])
    return result["recipe"].removesuffix("".join(f"+{setting}" for setting in settings)), settings


def _paper_table(results: list[dict[str, Any]]) -> str:
    lines = [
        "## Table 1 by the paper's recipes",
        "",
        "| network | published | last | valid | test (optimistic) | against its counterpart | seeds | parameters "
        "| hours | data | command |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in list_models():
        entry = model_entry(name)
        own = "" if entry.own_error is None else f" ({entry.own_error:g})"
        mine = [r for r in results if (r["model"], r["recipe"]) == (name, "paper")]
        if mine:
            figures = [_spread([r["error"][key] for r in mine]) for key in ("last", "valid", "test_optimistic")]
            base = [r for r in results if (r["model"], r["recipe"]) == (counterpart(name), "paper") and r not in mine]
            hours = sum(r["seconds"] for r in mine) / 3600 / len(mine)
            rest = [str(len(mine)), f"{mine[0]['parameters']:,}", f"{hours:.1f}", mine[0]["provenance"]]
            cells = [*figures, _against(mine, base), *rest]
        else:
            todo = f"{PAPER[name].epochs} epochs, {_estimate(gpu_hours(name))}"
            cells = ["not run", "", "", "", "", "", todo, ""]
        seeds = f" --seeds {_seeds(mine)}" if len(mine) > 1 else ""
        cells = [entry.title, f"{entry.error:g}{own}", *cells, f"`coattend reproduce {name}{seeds}`"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _other_tables(results: list[dict[str, Any]]) -> list[str]:
    """One table per data set and recipe, for what is no row of Table 1: other recipes, variations of networks."""
    tables: dict[str, list[str]] = {}
    rows_of_table_1 = [(name, "paper") for name in list_models()]
    others = {_kind(r) for r in results if (r["model"], r["recipe"]) not in rows_of_table_1}
    for kind in sorted(others, key=_reading_order):
        model, recipe, data, provenance = kind
        runs = [r for r in results if _kind(r) == kind]
        rival = (counterpart(model), counterpart_recipe(recipe), data, provenance)
        base = [r for r in results if _kind(r) == rival != kind]
        name, settings = recipe_of(runs[0])
        words = ["coattend", "compare", model, "--recipe", name, "--data", data, "--seeds", _seeds(runs)]
        words += [word for setting in settings for word in ("--set", setting)]
        entry = model_entry(model)
        cells = [
            model,
            ", ".join(settings),
            f"{entry.error:g}" if entry.dataset == data else "",
            _spread([r["error"]["valid"] for r in runs]),
            _against(runs, base),
            _spread([r["error"]["last"] for r in runs]),
            _against_at_the_end(runs, base),
            str(len(runs)),
            f"{runs[0]['parameters']:,}",
            f"{statistics.median(r['seconds_per_epoch'] for r in runs):.0f}",
            f"`{shlex.join(words)}`",
        ]
        title = f"## Recipe `{name}` on {data} ({provenance})"
        tables.setdefault(title, []).append(f"| {' | '.join(cells)} |")
    header = (
        "| network | changed | published | valid | against its counterpart | last | against its counterpart | seeds "
        "| parameters | s / epoch | command |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    return ["\n".join([title, "", header, *rows]) + "\n" for title, rows in tables.items()]


def _made_again(results: list[dict[str, Any]], elsewhere: list[dict[str, Any]]) -> list[str]:
    """What another machine made of the same commands: how far a figure holds where it cannot be repeated."""
    rows = []
    for kind in sorted({_kind(r) for r in elsewhere}, key=_reading_order):
        pairs = _paired([r for r in results if _kind(r) == kind], [r for r in elsewhere if _kind(r) == kind])
        there_and_here = list(zip(*pairs, strict=True))
        figures = [_spread([r["error"][key] for r in runs]) for key in ("valid", "last") for runs in there_and_here]
        if pairs:
            rows.append(f"| {' | '.join([*kind[:2], _seeds([mine for _, mine in pairs]), *figures])} |")
    title = f"""## The same commands on another machine

The runs there (`docs/results/{ELSEWHERE}/`) were made with earlier versions of this library and on instructions that
were not recorded; no other table counts them.
"""
    header = "| network | recipe | seeds | valid, there | here | last, there | here |\n|---|---|---|---|---|---|---|"
    return ["\n".join([title, header, *rows]) + "\n"] if rows else []


def _kind(result: dict[str, Any]) -> tuple[str, str, str, str]:
    """What the runs of one row have in common: all but the seed."""
    return result["model"], result["recipe"], result["data"], result["provenance"]


def _reading_order(kind: tuple[str, str, str, str]) -> tuple[str, ...]:
    model, recipe, data, provenance = kind
    name, _, settings = recipe.partition("+")
    return name, data, provenance, settings, counterpart(model), model


def counterpart(model: str) -> str:
    """The network without attention that a co-attentive one is measured against; for others, themselves.

    >>> counterpart("a_p4cnn:attention=output,head=max")
    'p4cnn:head=max'
    """
    name, _, options = model.partition(":")
    kept = ",".join(option for option in options.split(",") if option and not option.startswith(ABOUT_ATTENTION))
    return name.removeprefix("a_") + (f":{kept}" if kept else "")


def counterpart_recipe(recipe: str) -> str:
    """The recipe without what concerns attention alone, to which a network without attention is indifferent.

    >>> counterpart_recipe("house+attention_lr=4+epochs=10")
    'house+epochs=10'
    """
    name, settings = settings_of(recipe)
    return "+".join([name, *(setting for setting in settings if not setting.startswith(ABOUT_ATTENTION))])


def _against(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    """The difference in percentage points, paired over the seeds that both were trained with, or, with one, over the
    test images.
    """
    pairs = _paired(runs, base)
    if len(pairs) == 1:
        return f"{over_images(*map(_wrong, pairs[0]))}, over images"
    return _over_seeds([headline(mine)[1] - headline(other)[1] for other, mine in pairs])


def _against_at_the_end(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    """The same after the last epoch, which the choice of an epoch on a few validation images adds no noise to."""
    return _over_seeds([mine["error"]["last"] - other["error"]["last"] for other, mine in _paired(runs, base)])


def _paired(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Runs of equal seeds; not of two machines, where they are known: their difference would be the machines' too."""
    theirs = {r["seed"]: r for r in base}
    pairs = [(theirs[r["seed"]], r) for r in runs if r["seed"] in theirs]
    return [pair for pair in pairs if len({r.get("arithmetic") for r in pair} - {None}) < 2]


def _over_seeds(deltas: list[float]) -> str:
    return str(over_seeds(deltas)) if len(deltas) > 1 else ""


def _wrong(result: dict[str, Any]) -> np.ndarray:
    wrong = np.zeros(result["tested"], dtype=bool)
    wrong[[int(image) for image in result["wrong"].split()]] = True
    return wrong


def _seeds(runs: list[dict[str, Any]]) -> str:
    return ",".join(str(seed) for seed in sorted(r["seed"] for r in runs))


def _estimate(hours: float) -> str:
    return f"about {hours:.2g} GPU hours" if hours >= 0.1 else "minutes on a GPU"


def _spread(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return ""
    mean = f"{statistics.fmean(known):.2f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.2f}"
