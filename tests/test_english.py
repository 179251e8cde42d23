"""Words that the sources and documents avoid; CONTRIBUTING.md has the rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "src/coattend/**/*.py",
    "src/coattend/report/**/*.html",
    "src/coattend/report/explorer/*.js",
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "experiments/**/*.md",
    "examples/*.py",
    "benchmarks/*.py",
    "experiments/**/*.py",
    "tools/*.py",
)
AVOIDED = {
    r"\banew\b": "the prefix re-: refit, regenerate",
    r"\bbehind\b": "after",
    r"\bin the place of\b": "instead of",
    r"\b(can|could|cannot|to) be had\b": "is available",
    r"\bdata sets?\b": "dataset",
    r"\bby (that|those) of\b|\bby another's\b": "relative to, divided by",
    r"\blies? (in|at|on|below|above|between|beside)\b": "is",
    r"\b(a|the|for|this) persons?\b": "the user",
    r"\blest\b": "in case, so that ... not",
    r"\bthe other way round\b": "in the opposite direction, reversed",
    r"\bgraphics cards?\b": "GPU",
    r"\bUnderstood are\b|\bGiven is\b|\bMeant is\b": "a sentence with its subject first",
}
NAMES = {"found", "heard", "homeless", "kept", "look", "made", "mine", "place", "said"}  # acts, not things


def sources() -> list[Path]:
    return sorted(file for pattern in PATTERNS for file in ROOT.glob(pattern))


@pytest.mark.parametrize("words", AVOIDED)
def test_words_are_those_of_technical_english(words: str) -> None:
    matches = []
    for file in sources():
        text = file.read_text(encoding="utf-8")
        for match in re.finditer(words.replace(" ", r"\s+(?:#\s+)?"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            matches.append(f"{file.relative_to(ROOT)}:{line}: {match.group()!r}")
    assert not matches, f"write {AVOIDED[words]!r} in {matches}"


def test_names_are_those_of_things() -> None:
    matches = []
    for file in ROOT.glob("src/coattend/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                name = node.name
            else:
                continue
            if name in NAMES:
                matches.append(f"{file.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not matches


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attention behind\n    every convolution", r"\bbehind\b"),
        ("one file in the\nplace of two", r"\bin the place of\b"),
        ("the data\n# set", r"\bdata sets?\b"),
    ],
)
def test_words_are_recognized_across_lines(text: str, words: str) -> None:
    assert re.search(words.replace(" ", r"\s+(?:#\s+)?"), text)
