"""Verbs without their optional libraries: one line that names the extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coattend._words import EXTRAS, missing

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
VERBS = {
    "train": "p4cnn",
    "compare": "p4cnn z2cnn",
    "evaluate": "run",
    "reproduce": "p4cnn",
    "report": "runs",
    "explore": "",
    "restrict": "run",
}


def test_verbs_name_the_extra_that_they_need() -> None:
    commands = [f"{verb} {words}" for verb, words in VERBS.items()]
    program = f"""
import sys
sys.modules["lightning_fabric"] = sys.modules["jinja2"] = None  # importing them fails, as if they were not installed
from coattend.cli import main
for command in {commands!r}:
    sys.argv = ["coattend", *command.split()]
    try:
        main()
    except SystemExit as ended:
        print(f"exit {{ended.code}}", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    *said, rest = done.stderr.split("exit 2\n")
    assert rest == ""
    train = "coattend: this needs lightning_fabric, which is not installed; run `pip install -e '.[train]'`"
    plot = {
        "explore": "coattend: this needs jinja2, which is not installed; run `pip install -e '.[plot]'`",
        "report": "coattend: pictures and reports need matplotlib and Jinja2; run `pip install -e '.[plot]'`",
    }
    assert said == [f"{plot.get(verb, train)} in your clone of coattend.\n" for verb in VERBS]


@pytest.mark.parametrize("library", EXTRAS)
def test_every_extra_exists_and_installs_the_library(library: str) -> None:
    (requirements,) = re.findall(rf"^{EXTRAS[library]} = \[(.*?)\]$", PYPROJECT.read_text(), re.MULTILINE | re.DOTALL)
    package = {"PIL": "pillow"}.get(library, library.replace("_", "[_-]"))
    assert re.search(rf'"{package}[>=]', requirements)


def test_modules_that_no_extra_installs_are_not_explained_away() -> None:
    assert missing(ModuleNotFoundError("No module named 'coattend.nowhere'", name="coattend.nowhere")) is None
