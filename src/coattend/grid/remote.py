"""A job on another machine: what it does there, and which files come back if the folder of the runs is not shared."""

from __future__ import annotations

import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from coattend._files import write_atomically
from coattend.grid.network import interface_towards
from coattend.grid.process import LOG, Ending, TrainingProcess
from coattend.train.job import Job
from coattend.train.run_folder import FILES

LOOK = 0.2  # seconds between two looks at the process
PATIENCE = 3.0  # seconds until a file that was just written is visible on a shared file system
LAST_FILES = ("checkpoint.pt", "result.json")  # written after what they refer to, in this order

Files = Mapping[str, bytes]  # of a run folder, by their path in it


@dataclass(frozen=True)
class Started:
    """The process of an attempt has started, on a machine."""

    where: str


def attempt_events(
    job: Job, threads: int, marker: Path, files: Files, environment: Mapping[str, str], log: str = LOG
) -> Iterator[Started | Files | Ending]:
    """Run a job on this machine, and yield its start, its changed files if they have to be brought back, and its end.

    Where the folder of the runs is not shared, the run continues from ``files`` in a folder of this machine.
    """
    with ExitStack() as stack:
        shared = _appears(marker)
        if not shared:
            job = replace(job, root=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coattend-"))))
            bring_back(files, job.folder.path)
        if "MASTER_ADDR" in environment and (interface := interface_towards(environment["MASTER_ADDR"])) is not None:
            environment = {"GLOO_SOCKET_IFNAME": interface, **environment}
        process = TrainingProcess(job, threads, environment, log)
        stack.callback(process.stop)
        yield Started(socket.gethostname())
        known: dict[str, int] = {}
        while (ending := process.ending()) is None:
            time.sleep(LOOK)
            if not shared and (changed := changed_files(job.folder.path, known)):
                yield changed
        if not shared and (changed := changed_files(job.folder.path, known)):
            yield changed
        yield ending


def _appears(marker: Path) -> bool:
    """Return whether this machine sees the file, perhaps after the delay of a network file system."""
    deadline = time.monotonic() + PATIENCE
    while not marker.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK)
    return True


def run_files(path: Path) -> dict[str, bytes]:
    """Return what another machine needs to continue a run."""
    return {name: (path / name).read_bytes() for name in (*FILES, LOG) if (path / name).is_file()}


def changed_files(path: Path, known: dict[str, int]) -> dict[str, bytes]:
    """Return the files of a run folder that have changed since ``known`` was filled in, by the same function.

    The checkpoint is read first: what it refers to is then at least as new, as after a kill.
    """
    names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    whole = [name for name in names if not Path(name).name.startswith(".") and name != "lock"]
    files = {}
    for name in sorted(whole, key=lambda name: (name not in LAST_FILES, name)):
        try:
            changed = (path / name).stat().st_mtime_ns
            if known.get(name) != changed:
                files[name] = (path / name).read_bytes()
                known[name] = changed
        except FileNotFoundError:
            continue  # the checkpoint of a run that has just finished
    return files


def bring_back(files: Files, path: Path) -> None:
    """Write files of a run into its folder, the checkpoint and the result last."""
    path.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: (*(name == last for last in LAST_FILES), name)):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path / name, files[name])
    if "result.json" in files:
        (path / "checkpoint.pt").unlink(missing_ok=True)


@contextmanager
def marker_in(root: Path) -> Iterator[Path]:
    """A file by which another machine recognizes that it sees the same folder."""
    root.mkdir(parents=True, exist_ok=True)
    path = root.absolute() / f".grid-{uuid.uuid4().hex}"
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
