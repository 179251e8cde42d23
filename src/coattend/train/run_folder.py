"""The folder of one run: its one reader and writer, safe against kills and second processes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
from numpy.typing import NDArray

from coattend._files import remove_unfinished, write_atomically
from coattend.data import Dataset
from coattend.data.rotated_mnist import current_name
from coattend.models.classifier import BEST, LAST
from coattend.models.records import MachineError, RunError, damaged
from coattend.train.checkpoint import Checkpoint
from coattend.train.history import Epoch, read_history
from coattend.train.predictions import read_predictions, write_predictions
from coattend.train.recipe import Recipe, split_name
from coattend.train.record import Record, record_of
from coattend.train.run import Result, Run, digest_of
from coattend.version import __version__

PREDICTIONS = "predictions.npz"
FILES = ("run.json", "result.json", "metrics.jsonl", "checkpoint.pt", BEST, LAST, PREDICTIONS)
LONGEST = 120  # bytes of a folder's name; file systems allow 255
WALL_CLOCK = ("seconds", "images_per_second", "time")  # the fields that may differ between two equal runs
THEN = "; then "  # between the arithmetics of a run that was continued with another one
PACKAGES = ("torch", "numpy", "lightning-fabric", "torchmetrics")


class InUseError(RunError):
    """A run folder that another process is training in."""

    exit_code = 75  # EX_TEMPFAIL of <sysexits.h>: try again later


def arithmetic(device: torch.device) -> str:
    """Return what the last bits of a sum depend on, and after some epochs the errors too."""
    if device.type == "cpu":
        instructions = torch.backends.cpu.get_cpu_capability()
        processor = f"{platform.machine()} {instructions}, {torch.get_num_threads()} threads"
    else:
        processor = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processor = f"{torch.distributed.get_world_size()} processes of {processor}"
    return f"{processor}, torch {torch.__version__}"


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @staticmethod
    def of(root: str | Path, model: str, recipe: Recipe, seed: int, name: str | None = None) -> RunFolder:
        """Return the folder of a run below ``root``: called after data, model and recipe, or ``name``."""
        if name is not None:
            if not re.fullmatch(r"[\w.,=+-]+", name) or set(name) == {"."} or len(name.encode()) > LONGEST:
                raise RunError(
                    f"a run's name may have letters, digits and . , = + - _, at most {LONGEST} in all; got {name!r}."
                )
            return RunFolder(Path(root, name, f"seed{seed}"))
        parts = (Path(recipe.data).name, model, recipe.full_name)
        path = Path(root, *map(_bounded, parts), f"seed{seed}")
        return RunFolder(path if path.is_dir() else _older_spelling(Path(root), parts, seed) or path)

    @property
    def checkpoint(self) -> Path:
        """State of an unfinished run."""
        return self.path / "checkpoint.pt"

    @property
    def metrics(self) -> Path:
        """One JSON line per epoch."""
        return self.path / "metrics.jsonl"

    @property
    def last_weights(self) -> Path:
        """The network after the last epoch."""
        return self.path / LAST

    @property
    def best_weights(self) -> Path:
        """The network after the epoch with the best validation accuracy."""
        return self.path / BEST

    @property
    def run(self) -> Run:
        """What the run is: model, recipe, seed, data, versions."""
        return Run.read(self.path / "run.json")

    @property
    def result(self) -> Result | None:
        """What came out; None if the run is not finished."""
        path = self.path / "result.json"
        return Result.read(path) if path.is_file() else None

    def history(self) -> tuple[Epoch, ...]:
        """Return what was measured after every epoch."""
        return read_history(self.metrics) if self.metrics.is_file() else ()

    def predictions(self, protocol: str) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return labels and predicted classes of the test images, after the epoch of a protocol; None without them."""
        path = self.path / PREDICTIONS
        if not path.is_file():
            return None
        arrays = read_predictions(path)
        if protocol not in arrays:
            raise damaged(path, f"it has no {protocol}")
        return arrays["labels"], arrays[protocol]

    def record(self) -> Record:
        """Return a finished run as tables use it."""
        result = self.result
        if result is None:
            raise RunError(f"{self.path} has no result.json: the run is not finished; the same command continues it.")
        predictions = self.predictions(result.protocol)
        wrong = None if predictions is None else predictions[0] != predictions[1]
        return record_of(self.path, self.run, result, self.history(), wrong)

    def lock(self) -> filelock.FileLock:
        """A lock that the operating system releases when its owner dies; raises if another process holds it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot make the run folder {self.path}: {error.strerror}; choose another with --folder."
            ) from error
        lock = filelock.FileLock(self.path / "lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise InUseError(
                f"{self.path} is in use by another process; wait for it or choose another --folder."
            ) from None
        except OSError as error:
            raise RunError(f"cannot write into {self.path}: {error.strerror}; choose another --folder.") from error
        remove_unfinished(self.path, FILES)
        return lock

    def check_same(self, model: str, recipe: Recipe, seed: int, data: Dataset | None) -> None:
        """Raise unless run.json describes this run; without ``data``, the images are compared by name only."""
        run = self.run
        differing = run.differences(model, recipe, seed, data)
        if differing:
            name = current_name(run.recipe.data, run.provenance)
            renamed = "" if name == run.recipe.data else f" Its images ({run.provenance}) are now called {name}."
            raise RunError(
                f"{self.path} holds another run: {', '.join(differing)} differ; choose another --folder or --name."
                f"{renamed}"
            )

    def describe(
        self, model: str, recipe: Recipe, seed: int, data: Dataset, parameters: int, device: torch.device
    ) -> None:
        """Write run.json, or check that an existing one is of the same run."""
        if (self.path / "run.json").is_file():
            self.check_same(model, recipe, seed, data)
            self._add_arithmetic(arithmetic(device))
            return
        versions = {"coattend": __version__, "python": platform.python_version()}
        versions |= {package: metadata.version(package) for package in PACKAGES}
        run = Run(model, recipe, seed, data.provenance, parameters, versions, digest_of(data), arithmetic(device))
        self.write("run.json", run.to_dict())

    def _add_arithmetic(self, current: str) -> None:
        """Record that a run whose sums had another order until now continues with this one."""
        run = self.run
        known = (run.arithmetic or current).split(THEN)
        if known[-1] == current:
            return
        known = [*known, current] if self.checkpoint.is_file() else [current]
        self.write("run.json", replace(run, arithmetic=THEN.join(known)).to_dict())

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file in one piece."""
        write_atomically(self.path / name, (json.dumps(values, indent=1) + "\n").encode())

    def write_predictions(self, **arrays: NDArray[np.int64]) -> None:
        """Write labels and predicted classes of the test images, by protocol."""
        write_predictions(self.path / PREDICTIONS, arrays)

    def finish_epoch(self, epoch: Epoch, checkpoint: Checkpoint) -> None:
        """Write what an epoch measured, then the state to continue from."""
        self.save_checkpoint(replace(checkpoint, metrics_bytes=self.append_metrics(epoch)))

    def append_metrics(self, epoch: Epoch) -> int:
        """Append one line for good; returns the length of the file, which the checkpoint remembers."""
        with self.metrics.open("ab") as file:
            file.write((json.dumps(epoch.to_dict()) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write the state of the run in one piece; on failure the former checkpoint stays."""
        try:
            write_atomically(self.checkpoint, checkpoint.to_bytes())
        except OSError as error:
            raise MachineError(
                f"could not write the checkpoint of epoch {checkpoint.epoch} into {self.path}: {self._reason(error)}. "
                "What was written before it is intact: make room and start the same command again."
            ) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a write into this folder that fails into an error that says what to do."""
        try:
            yield
        except OSError as error:
            if error.filename is not None and not Path(error.filename).is_relative_to(self.path):
                raise
            raise MachineError(
                f"could not write into {error.filename or self.path}: {self._reason(error)}; make room or choose "
                "another --folder. What was written before is intact: the same command continues from it."
            ) from error

    def _reason(self, error: OSError) -> str:
        return f"{error.strerror or error} ({shutil.disk_usage(self.path).free:,} bytes free)"

    def finish(self, result: Result) -> None:
        """Write the result, which is what makes a run finished, and drop the checkpoint."""
        self.write("result.json", result.to_dict())
        self.drop_checkpoint()

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint, which a finished run may still have if it was killed while it finished."""
        if self.checkpoint.is_file():
            self.checkpoint.unlink()

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the state to continue from, with metrics cut back to that moment; None for a fresh start."""
        if not self.checkpoint.is_file():
            self.metrics.unlink(missing_ok=True)
            return None
        state = Checkpoint.read(self.checkpoint)
        measured = self.metrics.read_bytes() if self.metrics.is_file() else b""
        if state.metrics_bytes > len(measured):
            raise RunError(
                f"{self.metrics} is shorter than when {self.checkpoint.name} was written; move {self.checkpoint.name} "
                "away to start from the first epoch."
            )
        write_atomically(self.metrics, measured[: state.metrics_bytes])  # a link's target stays as it is
        return state


def _plain(part: str) -> str:
    return re.sub(r"[^\w.,=+-]+", "_", part)


def _bounded(part: str) -> str:
    """A folder's name for a part of any length: what does not fit becomes a digest."""
    plain = _plain(part)
    if len(plain.encode()) <= LONGEST:
        return plain
    return plain.encode()[: LONGEST - 11].decode(errors="ignore") + "~" + hashlib.sha256(part.encode()).hexdigest()[:10]


def _older_spelling(root: Path, parts: tuple[str, str, str], seed: int) -> Path | None:
    """Find a folder of versions that wrote settings in the order of the command line, and names of any length."""
    data, model, recipe = map(_plain, parts)
    parent = root / data / model
    if not os.path.isdir(parent):  # False also for names that are too long, where Path.is_dir raises
        return None
    wanted = split_name(recipe, ())
    older = (path for path in parent.iterdir() if split_name(path.name, ()) == wanted)
    return next((path / f"seed{seed}" for path in sorted(older) if (path / f"seed{seed}").is_dir()), None)
