"""Names, links and code in the documents are valid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_symbol_of_the_paper_map_exists() -> None:
    references = re.findall(r"`((?:src|tests)/[\w/]+\.py):(\w+)`", (ROOT / "docs/paper_map.md").read_text())
    assert len(references) >= 20
    for path, symbol in references:
        assert re.search(rf"^(class|def) {symbol}\b", (ROOT / path).read_text(), re.MULTILINE), f"{path}:{symbol}"


def test_every_equation_of_the_paper_is_on_the_map() -> None:
    rows = re.findall(r"^\| (Eqs?\. [^|]+) \|", (ROOT / "docs/paper_map.md").read_text(), re.MULTILINE)
    numbers: set[int] = set()
    for row in rows:
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", row):
            numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(range(1, 14))


def test_every_linked_file_exists() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert document.parent.joinpath(target).exists(), f"{document.name}: {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_python_in_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, cwd=ROOT, capture_output=True)


def test_the_tour_runs_and_shows_what_the_readme_shows() -> None:
    tour = subprocess.run(
        [sys.executable, "-W", "error", "examples/tour_of_the_core.py"],
        check=True, cwd=ROOT, capture_output=True, text=True, encoding="utf-8",
        env={**__import__("os").environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    for line in ("lifted onto D4", "cause:  attention of the wrong structure"):
        assert line in tour.stdout
