"""Run folders, finished and stopped, as read by training, evaluation, report and ledger."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from coattend.train import RunFolder
from coattend.train.checkpoint import MARK, Checkpoint
from experiments.hostile import models
from experiments.hostile.examples import digit, few_images, train_command, trained_run
from experiments.hostile.kinds import Damage, Kind, SilentAcceptanceError, command
from experiments.hostile.mutations import (
    BITS,
    CONTENTS,
    DISPLACEMENTS,
    PLACES,
    VALUES,
    among,
    cut,
    displace,
    each,
    edited,
    evil_pickle,
    flip,
    forge,
    npy_header,
    replace,
    without,
)

JSON_FILES = among("run.json", "result.json", "metrics.jsonl", "comparison.json")
STOPPED_FILES = among("run.json", "metrics.jsonl")
CHECKPOINT, PREDICTIONS = "checkpoint.pt", "predictions.npz"
BOMB = "bomb.npz"
PLAIN = "z2cnn:width=1"
STRAIGHT = "straight"  # the run that was never stopped


class _StoppedError(Exception):
    """Ends a training after its first checkpoint."""


def prepare_finished(folder: Path) -> None:
    """Make two finished runs and their comparison."""
    few_images(folder / "few.npz")
    digit(folder / "digit.png")
    command("compare", PLAIN, *train_command(folder / "runs")[1:])
    shutil.copy(file_in(folder, PREDICTIONS), folder / BOMB)
    forge(folder / BOMB, "labels", npy_header((1_500_000_000,)), 1_500_000_000)


def prepare_stopped(folder: Path) -> None:
    """Make a run that was stopped after its first epoch, and the same run finished."""
    run = trained_run(folder)
    shutil.copytree(run, folder / STRAIGHT)
    shutil.rmtree(folder / "runs")
    save = RunFolder.save_checkpoint

    def save_and_stop(self: RunFolder, checkpoint: Checkpoint) -> None:
        save(self, checkpoint)
        raise _StoppedError

    RunFolder.save_checkpoint = save_and_stop  # type: ignore[method-assign]
    try:
        command(*train_command(folder / "runs"))
    except _StoppedError:
        RunFolder.save_checkpoint = save  # type: ignore[method-assign]


# -- damages ---------------------------------------------------------------------------------------------------------


def file_in(folder: Path, name: str) -> Path:
    """Return the file of that name in the attentive run, or next to the runs."""
    if name == "comparison.json":
        return folder / "runs" / name
    return attentive_run(folder / "runs") / name


def attentive_run(root: Path) -> Path:
    """Return the run to damage."""
    return next(path.parent for path in root.rglob("best.safetensors") if "a_p4cnn" in str(path))


def edit_json(folder: Path, name: str, place: int, value: Any) -> None:
    """Replace a value somewhere in a file."""
    _rewritten(file_in(folder, name), lambda document: edited(document, place, value))


def drop_json(folder: Path, name: str, place: int) -> None:
    """Remove a field somewhere in a file."""
    _rewritten(file_in(folder, name), lambda document: without(document, place))


def _rewritten(path: Path, change: Any) -> None:
    if path.suffix == ".json":
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    else:
        first, *others = path.read_text().splitlines()
        path.write_text("\n".join([json.dumps(change(json.loads(first))), *others]) + "\n")


def edit_predictions(folder: Path, how: str) -> None:
    """Write predictions that contradict each other."""
    path = file_in(folder, PREDICTIONS)
    if how == "bomb":
        shutil.copy(folder / BOMB, path)
        return
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    if how.startswith("without "):
        arrays.pop(how.removeprefix("without "), None)
    elif how == "short":
        arrays["labels"] = arrays["labels"][:3]
    elif how == "classes":
        arrays["last"] = arrays["last"] + 60_000
    elif how == "floats":
        arrays = {name: array.astype(float) * np.nan for name, array in arrays.items()}
    elif how == "scalars":
        arrays = {name: np.array(3) for name in arrays}
    elif how == "empty":
        arrays = {name: array[:0] for name, array in arrays.items()}
    elif how == "objects":
        arrays = {name: np.array([None, how], dtype=object) for name in arrays}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    path.write_bytes(content.getvalue())


def add_hidden(folder: Path, what: str) -> None:
    """Put files of the user among those of the run."""
    run = attentive_run(folder / "runs")
    if what == "file":
        (run / ".notes").write_text("mine")
    elif what == "folder":
        (run / ".ipynb_checkpoints").mkdir()
    elif what == "lock folder":
        (run / "lock").unlink(missing_ok=True)
        (run / "lock").mkdir()
    elif what == "other run":
        (folder / "runs" / "broken" / "seed0").mkdir(parents=True)
        (folder / "runs" / "broken" / "seed0" / "run.json").write_text("{}")


def edit_checkpoint(folder: Path, field: str, value: Any) -> None:
    """Replace or remove a field of the checkpoint, in a file without a digest, as of earlier versions."""
    path = file_in(folder, CHECKPOINT)
    content = path.read_bytes()
    state = torch.load(
        io.BytesIO(content.partition(b"\n")[2] if content.startswith(MARK) else content), weights_only=True
    )
    if value == "dropped":
        del state[field]
    elif field in state and isinstance(state[field], dict) and value == "emptied":
        state[field] = {}
    else:
        state[field] = value
    torch.save(state, path)


def replace_checkpoint(folder: Path, what: str) -> None:
    """Replace the checkpoint."""
    path = file_in(folder, CHECKPOINT)
    if what == "pickle":
        path.write_bytes(evil_pickle())
    elif what == "zip":
        torch.save({"model": None}, path)
    elif what == "tensor":
        torch.save(torch.zeros(3), path)
    elif what == "module":
        torch.save(torch.nn.Linear(2, 2), path)
    else:
        path.write_text(what)


# -- attempts --------------------------------------------------------------------------------------------------------


def train(folder: Path, _: Path) -> None:
    """Run the command of the run again."""
    command(*train_command(folder / "runs"))


def compare(folder: Path, _: Path) -> None:
    """Run the command of both runs again."""
    command("compare", PLAIN, *train_command(folder / "runs")[1:])


def evaluate(folder: Path, _: Path) -> None:
    """Run ``coattend evaluate``."""
    command("evaluate", attentive_run(folder / "runs"), "--data", folder / "few.npz")


def predict(folder: Path, _: Path) -> None:
    """Run ``coattend predict``."""
    command("predict", attentive_run(folder / "runs"), folder / "digit.png")


def report(folder: Path, _: Path) -> None:
    """Run ``coattend report`` on all runs."""
    command("report", folder / "runs")


def reproduce(folder: Path, _: Path) -> None:
    """Run ``coattend reproduce`` without a row: the ledger of the existing runs."""
    command("reproduce", "--folder", folder / "runs", "--ledger", folder)


def resume(folder: Path, healthy: Path) -> None:
    """Continue the stopped run: it must end as the one that was not stopped, if its state has a digest."""
    run = attentive_run(folder / "runs")
    had_notes = (run / ".notes").is_file()
    checkpoint = run / CHECKPOINT
    sealed = not checkpoint.is_file() or checkpoint.is_symlink() or checkpoint.read_bytes().startswith(MARK)
    command(*train_command(folder / "runs"))
    for name in ("best.safetensors", "last.safetensors"):
        if sealed:
            models.unchanged(run / name, healthy / STRAIGHT / name)
    if had_notes and not (run / ".notes").is_file():
        raise SilentAcceptanceError("a file of the user's was deleted")


FINISHED = Kind(
    share=240,
    prepare=prepare_finished,
    damages={
        "hidden": Damage(each(among("file", "folder", "lock folder", "other run")), add_hidden),
        "predictions": Damage(
            each(
                among(
                    "without labels",
                    "without last",
                    "without valid",
                    "short",
                    "classes",
                    "floats",
                    "scalars",
                    "empty",
                    "objects",
                    "bomb",
                )
            ),
            edit_predictions,
        ),
        "displace": Damage(
            each(JSON_FILES | st.just(PREDICTIONS), DISPLACEMENTS),
            lambda folder, name, what: displace(file_in(folder, name), what),
        ),
        "flip_predictions": Damage(
            each(PLACES, BITS), lambda folder, place, bit: flip(file_in(folder, PREDICTIONS), place, bit)
        ),
        "cut": Damage(
            each(JSON_FILES | st.just(PREDICTIONS), PLACES),
            lambda folder, name, place: cut(file_in(folder, name), place),
        ),
        "replace": Damage(
            each(JSON_FILES | st.just(PREDICTIONS), among(*CONTENTS)),
            lambda folder, name, content: replace(file_in(folder, name), content),
        ),
        "flip": Damage(
            each(JSON_FILES, PLACES, BITS), lambda folder, name, place, bit: flip(file_in(folder, name), place, bit)
        ),
        "drop": Damage(each(JSON_FILES, PLACES), drop_json),
        "edit": Damage(each(JSON_FILES, PLACES, VALUES), edit_json),
    },
    attempts={
        "train": train,
        "compare": compare,
        "evaluate": evaluate,
        "predict": predict,
        "report": report,
        "reproduce": reproduce,
    },
)

FIELDS = among("model", "optimizer", "epoch", "best", "relative", "metrics_bytes")
STOPPED = Kind(
    share=120,
    prepare=prepare_stopped,
    damages={
        "hidden": Damage(each(among("file", "folder", "lock folder", "other run")), add_hidden),
        "replace_checkpoint": Damage(each(among("", "x", "pickle", "zip", "tensor", "module")), replace_checkpoint),
        "displace": Damage(
            each(STOPPED_FILES | st.just(CHECKPOINT), DISPLACEMENTS),
            lambda folder, name, what: displace(file_in(folder, name), what),
        ),
        "cut_checkpoint": Damage(each(PLACES), lambda folder, place: cut(file_in(folder, CHECKPOINT), place)),
        "edit_checkpoint": Damage(each(FIELDS, VALUES | among("dropped", "emptied", 2**31, 2**40)), edit_checkpoint),
        "replace": Damage(
            each(STOPPED_FILES, among(*CONTENTS)), lambda folder, name, content: replace(file_in(folder, name), content)
        ),
        "drop": Damage(each(STOPPED_FILES, PLACES), drop_json),
        "edit": Damage(each(STOPPED_FILES, PLACES, VALUES), edit_json),
        "flip_checkpoint": Damage(
            each(PLACES, BITS), lambda folder, place, bit: flip(file_in(folder, CHECKPOINT), place, bit)
        ),
    },
    attempts={"resume": resume},
)
