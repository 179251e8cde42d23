"""The section on filters: any number of finished runs, paired with the network over its usual group."""

from __future__ import annotations

from pathlib import Path

from coattend.report.filters import is_of_filters
from coattend.report.ledger import RUNS, ledger_text
from coattend.train.record import Record, write_records
from tests.train.records import record

FREE, STEERABLE = "p4cnn:group=C8,width=7,filters=free,head=max", "p4cnn:group=C8,width=9,filters=steerable,head=max"


def page(folder: Path, *records: Record) -> str:
    write_records(folder / RUNS, records)
    return ledger_text(folder)


def section(text: str) -> dict[str, list[str]]:
    """The cells of the section's rows, by network."""
    body = text.partition("## Filters")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines() if line.startswith("|")]
    return {row[0]: row for row in rows if "coattend compare" in row[-1]}


def test_rows_are_paired_with_the_usual_group_over_seeds(tmp_path: Path) -> None:
    lasts = {"p4cnn:head=max": (1.6, 1.7, 1.8), FREE: (1.1, 1.3, 1.2), STEERABLE: (1.0,)}
    runs = [record(model, "house", n, 2 * e, e) for model, values in lasts.items() for n, e in enumerate(values)]
    text = page(tmp_path, *runs)
    rows = section(text)
    assert list(rows) == ["p4cnn:head=max", FREE, STEERABLE]
    # By hand: differences -0.5, -0.4, -0.6, mean -0.5, deviation 0.1, Student's t with 2 degrees 4.303.
    last, valid = "-0.50 [-0.75, -0.25] better", "-1.00 [-1.50, -0.50] better"
    assert rows[FREE][1:7] == ["19,880", "1.10, 1.30, 1.20", "1.20 ± 0.10", last, "2.40 ± 0.20", valid]
    assert rows[FREE][-1] == f"`coattend compare {FREE} --recipe house --data rotated-mnist --seeds 0,1,2`"
    assert rows["p4cnn:head=max"][4] == rows["p4cnn:head=max"][6] == ""
    assert rows[STEERABLE][4] == ""
    assert rows[STEERABLE][6].endswith("over images")  # with a single seed
    assert text.count(f"| {FREE} |") == 1  # in no other table
    assert text.count("| p4cnn:head=max |") == 2


def test_the_first_finished_run_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    (row,) = section(page(tmp_path, record(STEERABLE, "house", 2, 1.4, 1.3))).values()
    assert row[2:7] == ["1.30", "1.30", "", "1.40", ""]
    assert "--seeds 2`" in row[-1]


def test_recipes_settings_and_heads_have_tables_of_their_own(tmp_path: Path) -> None:
    text = page(
        tmp_path,
        record("p4cnn:head=max", "house", 0, 2.0, 2.0),
        record(FREE, "house", 0, 1.0, 1.0, settings=("epochs=60",)),
        record("p4cnn:group=C8,filters=free", "house", 0, 1.0, 1.0),
    )
    assert "### p4cnn:head=max, recipe `house+epochs=60` on rotated-mnist" in text
    assert "### p4cnn, recipe `house` on rotated-mnist" in text
    assert "better" not in text.partition("## Filters")[2]


def test_pages_without_such_networks_have_no_section(tmp_path: Path) -> None:
    runs = [record(m, "house", 0, 2.0, 2.0) for m in ("p4cnn:group=C8,width=7", "a_p4cnn:group=C8,filters=free")]
    assert not any(is_of_filters(run.result.kind) for run in runs)
    assert "## Filters" not in page(tmp_path, *runs)
