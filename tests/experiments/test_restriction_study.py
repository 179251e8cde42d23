"""The table of the study in the documentation is that of its results."""

from __future__ import annotations

from pathlib import Path

from experiments.restriction_study import NETWORKS, SHARES, WAYS, Result, table
from experiments.rows import read_rows, write_rows

ROOT = Path(__file__).parents[2]


def test_the_table_in_the_documentation_is_that_of_the_results(tmp_path: Path) -> None:
    results = read_rows(ROOT / "results/restriction_study.jsonl", Result)
    assert table(results) in (ROOT / "docs/restriction.md").read_text()
    cases = {(model, share, way) for model in NETWORKS.values() for share in SHARES[1:] for way in WAYS}
    for seed in (0, 1, 2):
        assert cases <= {(r.model, r.share, r.way) for r in results if r.seed == seed}
    write_rows(tmp_path / "again.jsonl", results)
    assert read_rows(tmp_path / "again.jsonl", Result) == results


def test_differences_are_paired_over_seeds() -> None:
    errors = {"logits": (3.0, 3.5, 4.0), "random": (3.6, 4.0, 4.4), "weights": (5.0, 5.0, 5.0)}
    results = [
        Result("a_p4cnn", seed, 2, way, {}, 7, 7, 50.0, errors[way][seed], 100, "quick", "mini", 3)
        for way in errors
        for seed in (2, 0, 1)
    ]
    rows = {line.split("|")[3].strip(): line for line in table(results).splitlines()}
    # By hand: differences -0.6, -0.5, -0.4, deviation 0.1, Student's t with 2 degrees 4.303.
    assert "3.50 (3.00, 3.50, 4.00) | -0.50 [-0.75, -0.25] better" in rows["by the logits"]
    assert rows["at random"].endswith("4.00 (3.60, 4.00, 4.40) |  |")
