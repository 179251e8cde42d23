"""The folder of one run: what it is, how far it came, what came out; safe against kills and second processes."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import torch

from coattend.models.files import write_atomically
from coattend.train.recipe import Recipe
from coattend.version import __version__

WALL_CLOCK = ("seconds", "images_per_second", "time")  # the fields that may differ between two equal runs
PACKAGES = ("torch", "numpy", "lightning-fabric", "torchmetrics")


class RunError(ValueError):
    """A run that cannot go on; the message is meant for the user as it stands."""


def arithmetic(device: torch.device) -> str:
    """What the last bits of a sum depend on, and after some epochs the errors too."""
    if device.type == "cpu":
        instructions = torch.backends.cpu.get_cpu_capability()
        processor = f"{platform.machine()} {instructions}, {torch.get_num_threads()} threads"
    else:
        processor = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{processor}, torch {torch.__version__}"


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @staticmethod
    def of(root: Path, model: str, recipe: Recipe, seed: int) -> RunFolder:
        """Where the run of a model by a recipe with a seed lives below ``root``."""
        parts = (Path(recipe.data).name, model, recipe.name, f"seed{seed}")
        return RunFolder(root.joinpath(*(re.sub(r"[^\w.,=+-]+", "_", part) for part in parts)))

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
        return self.path / "last.safetensors"

    @property
    def best_weights(self) -> Path:
        """The network after the epoch with the best validation accuracy."""
        return self.path / "best.safetensors"

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out, if the run is finished."""
        path = self.path / "result.json"
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def description(self) -> dict[str, Any]:
        """What the run is: model, recipe, seed, provenance, versions."""
        path = self.path / "run.json"
        if not path.is_file():
            raise RunError(
                f"{self.path} is not a run folder: it has no run.json; expected one written by `coattend train`."
            )
        return json.loads(path.read_text())

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in self.metrics.read_text().splitlines()] if self.metrics.is_file() else []

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
            raise RunError(
                f"{self.path} is in use by another process; wait for it or choose another --folder."
            ) from None
        except OSError as error:
            raise RunError(f"cannot write into {self.path}: {error.strerror}; choose another --folder.") from error
        for half_written in self.path.glob(".*"):  # left by a process that was killed while it wrote
            half_written.unlink()
        return lock

    def describe(
        self, model: str, recipe: Recipe, seed: int, provenance: str, parameters: int, device: torch.device
    ) -> None:
        """Write run.json, or check that the one there is of the same run."""
        wanted = {"model": model, "recipe": recipe.to_dict(), "seed": seed, "provenance": provenance}
        if (self.path / "run.json").is_file():
            there = self.description
            differing = [key for key in ("model", "seed", "provenance") if there[key] != wanted[key]]
            # A run begun before a field existed was made as if the field had its default.
            begun = {**Recipe(recipe.name).to_dict(), **there["recipe"]}
            differing += [f"recipe.{k}" for k, v in recipe.to_dict().items() if begun[k] != v]
            if differing:
                raise RunError(
                    f"{self.path} holds another run: {', '.join(differing)} differ; choose another --folder or "
                    "remove it."
                )
            return
        versions = {"coattend": __version__, "python": platform.python_version()}
        versions |= {package: metadata.version(package) for package in PACKAGES}
        facts = {**wanted, "parameters": parameters, "versions": versions, "arithmetic": arithmetic(device)}
        self.write("run.json", facts)

    def write(self, name: str, values: dict[str, Any]) -> None:
        """Write a JSON file in one piece."""
        write_atomically(self.path / name, (json.dumps(values, indent=1) + "\n").encode())

    def keep_epoch(self, line: dict[str, Any], state: dict[str, Any]) -> None:
        """Write down what an epoch measured, then the state to go on from."""
        self.save_checkpoint({**state, "metrics_bytes": self.append_metrics(line)}, line["epoch"])

    def append_metrics(self, line: dict[str, Any]) -> int:
        """Append one line for good; returns the length of the file, which the checkpoint remembers."""
        with self.metrics.open("ab") as file:
            file.write((json.dumps(line) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def save_checkpoint(self, state: dict[str, Any], epoch: int) -> None:
        """Write the state of the run in one piece; on failure the former checkpoint stays."""
        content = io.BytesIO()
        torch.save(state, content)
        try:
            write_atomically(self.checkpoint, content.getvalue())
        except OSError as error:
            free = shutil.disk_usage(self.path).free
            raise RunError(
                f"could not write the checkpoint of epoch {epoch} into {self.path}: {error.strerror} ({free:,} bytes "
                "free). The checkpoint before it is intact: make room and start the same command again."
            ) from error

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, which is what makes a run finished, and drop the checkpoint."""
        self.write("result.json", result)
        self.checkpoint.unlink(missing_ok=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The state to go on from, with metrics cut back to that moment; None for a fresh start."""
        if not self.checkpoint.is_file():
            self.metrics.unlink(missing_ok=True)
            return None
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
        with self.metrics.open("ab") as file:
            file.truncate(state["metrics_bytes"])
        return state
