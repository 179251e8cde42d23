"""Does this machine regenerate the ledger? Train its runs again for a few epochs and compare with the curves kept.

    python tools/check_ledger.py 2 paper house-seed0

For each file of ``docs/results`` whose name contains one of the parts (all files without one) the run's own command is
started in a folder of its own, stopped after so many epochs, and what it measured after each of them is compared with
the curves of the ledger, to all digits kept there. Runs that agree so far have the same data, weights, order of images,
augmentation, dropout and arithmetic, and everything after follows from these; as many epochs as the run has check all
of it. Exits with 1 if a run differs; runs whose curves were not kept cannot be compared and are named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from coattend.train import RunFolder
from coattend.train.ledger import curves, recipe_of

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def command(result: dict[str, Any], folder: Path) -> list[str]:
    """The training behind one result."""
    recipe, settings = recipe_of(result)
    changed = [word for setting in settings for word in ("--set", setting)]
    about = ["--recipe", recipe, "--data", result["data"], "--seed", str(result["seed"]), *changed]
    return [sys.executable, "-m", "coattend", "train", result["model"], *about, "--folder", str(folder)]


def first_epochs(result: dict[str, Any], epochs: int) -> list[dict[str, Any]]:
    """What the run of a result measures after each of its first epochs, made here and now."""
    with tempfile.TemporaryDirectory() as root:
        words = command(result, Path(root))
        training = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        history: list[dict[str, Any]] = []
        try:
            while len(history) < epochs:
                running = training.poll() is None  # asked first: what a run wrote before its end is read below
                files = Path(root).rglob("metrics.jsonl")
                history = [line for file in files for line in RunFolder(file.parent).history()]
                if not running and len(history) < epochs:
                    complaint = training.communicate()[1]
                    raise RuntimeError(f"{' '.join(words)} ended after {len(history)} epochs:\n{complaint}")
                time.sleep(0.2)
        finally:
            training.kill()  # whatever happened here, no training goes on unseen
            training.wait()
    return history[:epochs]


def differences(kept: dict[str, str], measured: dict[str, str]) -> list[str]:
    """Where curves measured again part from those kept: per measure the first such epoch, with both figures."""
    found = []
    for measure, values in measured.items():
        pairs = enumerate(zip(kept[measure].split(), values.split(), strict=False), 1)
        parted = [f"{measure} of epoch {epoch}: {old} there, {new} here" for epoch, (old, new) in pairs if old != new]
        found += parted[:1]
    return found


def main(
    epochs: tyro.conf.Positional[int],
    parts: tyro.conf.Positional[tuple[str, ...]] = (),
) -> int:
    """Train runs of the ledger again for a few epochs and compare; exits with 1 if one differs.

    Args:
        epochs: How many epochs of each run.
        parts: Parts of the names of files in docs/results; all of them by default.
    """
    paths = [path for path in sorted(RESULTS.glob("*.json")) if not parts or any(part in path.name for part in parts)]
    console, differing = Console(highlight=False, markup=False, soft_wrap=True), 0
    if epochs < 1 or not paths:
        console.print(f"expected at least one epoch and parts of names in {RESULTS}; got {epochs} and {list(parts)}.")
        return 2
    for path in paths:
        result = json.loads(path.read_text())
        if "curves" not in result:
            console.print(f"{path.stem}: no curves were kept, cannot be compared")
            continue
        wanted = min(epochs, result["epochs"])
        found = differences(result["curves"], curves(first_epochs(result, wanted)))
        differing += bool(found)
        console.print(f"{path.stem}: {'; '.join(found) or f'the same, epochs 1 to {wanted}'}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
