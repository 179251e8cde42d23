"""The ledger: published and measured errors for every row of Table 1, written from the results of finished runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from coattend._files import write_atomically
from coattend.data.catalog import DATASETS
from coattend.models import create_model, model_entry
from coattend.models.paper import TABLE_1
from coattend.nn.observe import multiply_adds
from coattend.report.cells import against, against_at_the_end, command_of, mean_errors, pairs_of, seeds_of
from coattend.report.filters import filter_section, is_of_filters
from coattend.report.lines import markdown_table
from coattend.train.recipe import changed
from coattend.train.recipes import PAPER, get_recipe
from coattend.train.record import Record, read_records, write_records
from coattend.train.row import Row, rows_of
from coattend.train.run import Kind, is_named
from coattend.train.run_folder import RunFolder

HEADER = """# Results

`coattend reproduce` writes this page from `results/runs.jsonl`. Errors are test errors in percent: after the last
epoch ("last"), after the epoch chosen on the validation images ("valid"), and after the best epoch on the test images
themselves ("test"), which is optimistic and shown only because others report it. Published errors are those of the
paper's own protocol, in every table; figures in parentheses are the authors' own runs of other people's networks.
Differences are paired over seeds, with a 95% interval; with a single seed, over the test images, which does not
include the spread over seeds. Each command needs `coattend data fetch rotated-mnist` (or `cifar10`) once, and
continues what was stopped; `coattend reproduce --ledger results --page docs/results.md` writes this page again from
the finished runs in `runs`. Data without a version, `generated from MNIST (seed 2020)`, are version 1 of the generated
digits, `rotated-mnist-v1` ([data.md](data.md#handedness)); `coattend reproduce` trains on version 2. GPU hours are
estimates: the multiply-adds of all convolutions of the whole training, forward and backward, at a sustained 5e12
operations per second, and nothing else.
"""
RUNS = "runs.jsonl"  # the results file of a ledger, one line per run
OWN_LEDGER = Path(__file__).parents[3] / "results"  # in a clone; an installed package has none
PAPER_COLUMNS = ("network", "published", "last", "valid", "test (optimistic)", "against its counterpart", "seeds",
                 "parameters", "hours", "data", "command")  # fmt: skip
OTHER_COLUMNS = ("network", "changed", "published", "valid", "against its counterpart", "last",
                 "against its counterpart", "seeds", "parameters", "s / epoch", "command")  # fmt: skip
ATTENTION_OPTIONS = ("attention", "structure", "position", "diagonal")  # of networks
ATTENTION_FIELDS = ("attention_lr", "decay_attention")  # of recipes
SUSTAINED = 5e12  # floating-point operations per second; a quarter of what large cards promise in float32
OPERATIONS_PER_PRODUCT = 2 * 3  # a product and a sum; forward, and backward to the input and to the weights


def collect(runs: Path, ledger: Path, models: Sequence[str] = ()) -> list[Record]:
    """Put the results of finished runs below ``runs`` into the ledger, and return them.

    Only runs on datasets with a name are taken, and, if ``models`` are given, only those of these networks by the
    paper's recipe. A run replaces an earlier one of the same kind and seed.
    """
    folders = [RunFolder(path.parent) for path in sorted(runs.rglob("result.json"))]
    finished = [record for record in (folder.record() for folder in folders) if is_named(record.result.data)]
    records = [r for r in finished if not models or (r.result.model in models and r.result.recipe == "paper")]
    ledger.mkdir(parents=True, exist_ok=True)
    by_run = {(record.result.kind, record.result.seed): record for record in [*read_records(ledger / RUNS), *records]}
    write_records(ledger / RUNS, by_run.values())
    return records


def write_ledger(ledger: Path, page: Path) -> None:
    """Write the page from the results file of a ledger."""
    write_atomically(page, ledger_text(ledger).encode())


def ledger_text(ledger: Path) -> str:
    """Return the page; ``reading.md`` in the ledger is its introduction."""
    records = read_records(ledger / RUNS)
    rows = rows_of(records)
    reading = ledger / "reading.md"
    introduction = [reading.read_text()] if reading.is_file() else []
    parts = [HEADER, *made_of(records), *introduction, _paper_table(rows)]
    return "\n".join([*parts, *filter_section(rows), *_other_tables(rows)]) + "\n"


def made_of(records: Sequence[Record]) -> list[str]:
    """Return how many runs and hours a page is made of, and on which processors."""
    hours = sum(record.result.seconds for record in records) / 3600
    arithmetics = Counter(record.arithmetic or "not recorded" for record in records)
    by_arithmetic = "; ".join(f"{name}: {_count(count)}" for name, count in sorted(arithmetics.items()))
    total = f"This page is made of {_count(len(records))}, {hours:.1f} hours of training."
    return [total, f"By arithmetic: {by_arithmetic}.\n" if records else ""]


def _paper_table(rows: Mapping[Kind, Row]) -> str:
    lines = []
    for name in PAPER:
        trained = [row for kind, row in rows.items() if kind.model == name and _is_of_table_1(kind)]
        lines += [_paper_line(name, row, rows) for row in trained] or [_line_to_do(name)]
    return "## Table 1 by the paper's recipes\n\n" + markdown_table(PAPER_COLUMNS, lines)


def _published(name: str) -> list[str]:
    row = TABLE_1[name]
    own = "" if row.own_error is None else f" ({row.own_error:g})"
    return [row.title, f"{row.error:g}{own}"]


def _line_to_do(name: str) -> list[str]:
    to_do = f"{PAPER[name].epochs} epochs, {_estimate(gpu_hours(name))}"
    return [*_published(name), "not run", "", "", "", "", "", to_do, "", f"`coattend reproduce {name}`"]


def _paper_line(name: str, row: Row, rows: Mapping[Kind, Row]) -> list[str]:
    hours = statistics.fmean(record.result.seconds for record in row.records) / 3600
    seeds = f" --seeds {seeds_of(row)}" if len(row.seeds) > 1 else ""
    return [
        *_published(name),
        *mean_errors(row, "last", "valid", "test_optimistic"),
        against(pairs_of(row, rows.get(counterpart(row.kind)))),
        str(len(row.seeds)),
        f"{row.parameters:,}",
        f"{hours:.1f}",
        row.kind.provenance,
        f"`coattend reproduce {name}{seeds}`",
    ]


def _other_tables(rows: Mapping[Kind, Row]) -> list[str]:
    """One table per dataset and recipe for what is no row of Table 1: other recipes, variations of networks."""
    tables: dict[str, list[list[str]]] = {}
    for kind in sorted(rows, key=_reading_order):
        if not _is_of_table_1(kind) and not is_of_filters(kind):
            title = f"## Recipe `{kind.recipe}` on {kind.data} ({kind.provenance})"
            tables.setdefault(title, []).append(_other_line(rows[kind], rows))
    return [f"{title}\n\n{markdown_table(OTHER_COLUMNS, lines)}" for title, lines in tables.items()]


def _other_line(row: Row, rows: Mapping[Kind, Row]) -> list[str]:
    kind, pairs = row.kind, pairs_of(row, rows.get(counterpart(row.kind)))
    entry = model_entry(kind.model)
    valid, last = mean_errors(row, "valid", "last")
    return [
        kind.model,
        ", ".join(kind.settings),
        f"{entry.error:g}" if entry.error is not None and entry.dataset == kind.data else "",
        valid,
        against(pairs),
        last,
        against_at_the_end(pairs),
        str(len(row.seeds)),
        f"{row.parameters:,}",
        f"{row.seconds_per_epoch:.0f}",
        command_of(row),
    ]


def _is_of_table_1(kind: Kind) -> bool:
    paper = PAPER.get(kind.model)
    return paper is not None and (kind.recipe, kind.settings, kind.data) == ("paper", (), paper.data)


def _reading_order(kind: Kind) -> tuple[str, ...]:
    return kind.recipe, kind.data, kind.provenance, "+".join(kind.settings), counterpart(kind).model, kind.model


def counterpart(kind: Kind) -> Kind:
    """Return the kind that a network is compared with: without attention or generated filters, and their settings.

    >>> other = counterpart(Kind("a_p4cnn:attention=output,head=max", "house", ("attention_lr=4", "lr=1"), "mini", ""))
    >>> other.model, other.settings
    ('p4cnn:head=max', ('lr=1',))
    """
    name, _, options = kind.model.partition(":")
    rest = ",".join(option for option in options.split(",") if option and not _is_of(option, ATTENTION_OPTIONS))
    if name == "e4cnn" and "generated=false" not in rest:
        rest = f"{rest},generated=false".lstrip(",")
    settings = tuple(setting for setting in kind.settings if not _is_of(setting, ATTENTION_FIELDS))
    return replace(kind, model=name.removeprefix("a_") + (f":{rest}" if rest else ""), settings=settings)


def _is_of(setting: str, names: Sequence[str]) -> bool:
    return setting.partition("=")[0] in names


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _estimate(hours: float) -> str:
    return f"about {hours:.2g} GPU hours" if hours >= 0.1 else "minutes on a GPU"


@lru_cache
def gpu_hours(model: str) -> float:
    """Estimate the hours for the convolutions of one training by the paper's recipe; all else is taken to be free.

    >>> round(gpu_hours("p4_allcnn"), 1)
    6.5
    """
    recipe = get_recipe("paper", model)
    data = DATASETS[recipe.data]
    assert data.sizes is not None  # known of every dataset of the paper
    train, valid, _ = data.sizes
    images = train + valid if recipe.train_on == "train+valid" else train
    products = sum(multiply_adds(create_model(model), data.image_shape).values()) * images * recipe.epochs
    return products * OPERATIONS_PER_PRODUCT / SUSTAINED / 3600


@dataclass(frozen=True)
class Reproduction:
    """Test errors of one network in percent: as published, in this library's own ledger, and in another."""

    model: str
    published: float
    shipped: tuple[float, ...]
    here: tuple[float, ...]


def reproductions(ledger: Path, models: Sequence[str] = (), settings: Sequence[str] = ()) -> list[Reproduction]:
    """Read a ledger's runs by the paper's recipe, changed by ``settings``; without ``models``, all that it has."""

    def errors(rows: Mapping[Kind, Row], model: str, settings: tuple[str, ...]) -> tuple[float, ...]:
        wanted = (model, "paper", settings)
        matching = [row for kind, row in rows.items() if (kind.model, kind.recipe, kind.settings) == wanted]
        return tuple(error for row in matching for error in row.errors)

    own, other = rows_of(read_records(OWN_LEDGER / RUNS)), rows_of(read_records(ledger / RUNS))
    lines = []
    for model in models or list(PAPER):
        here = errors(other, model, changed(get_recipe("paper", model), settings).settings)
        if models or here:
            lines.append(Reproduction(model, TABLE_1[model_entry(model).name].error, errors(own, model, ()), here))
    return lines
