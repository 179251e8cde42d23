"""Jobs in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coattend.grid.leash import ENDED
from coattend.models.records import MachineError
from coattend.train.job import Job
from coattend.train.run_folder import InUseError, RunFolder

LOG = "log.txt"
LINES = 50  # of the output, kept to find the reason of a failure
MISTAKE = 2  # exit code of everything that ends in the same way again: mistakes, divergence


@dataclass(frozen=True)
class Ending:
    """How an attempt at a job ended.

    - code: the exit code; negative for a signal, None if the machine or its scheduler lost the process
    - reason: the last line that it printed, or what is known instead
    """

    code: int | None
    reason: str

    @property
    def is_success(self) -> bool:
        """Whether the run is finished."""
        return self.code == 0

    @property
    def is_in_use(self) -> bool:
        """Whether another process is training the run."""
        return self.code == InUseError.exit_code

    @property
    def is_final(self) -> bool:
        """Whether another attempt would end in the same way."""
        return self.code == MISTAKE


class TrainingProcess:
    """A process that trains a job, or, if it ``serves``, more of them afterwards.

    What it prints is appended to log.txt in the folder of the run.
    """

    def __init__(
        self,
        job: Job,
        threads: int,
        environment: Mapping[str, str] | None = None,
        log: str = LOG,
        serves: bool = False,
    ) -> None:
        self.threads = threads_of(job.folder, threads)
        self.serves = serves
        self._last: deque[str] = deque(maxlen=LINES)
        self._code: int | None = None
        self._log = _log_of(job, log)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coattend.grid.leash", *(() if serves else job.arguments())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(self.threads), **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches the starter alone, which ends all
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if serves:
            self._send(job)

    @property
    def pid(self) -> int:
        """The number of the process, which is also that of its group."""
        return self._process.pid

    def train(self, job: Job) -> None:
        """Train another job after one that has ended well; raises OSError if the process has ended meanwhile."""
        self._last.clear()
        self._code, self._log = None, _log_of(job, LOG)
        self._send(job)

    def ending(self) -> Ending | None:
        """Return how the job ended; None while it runs."""
        code = self._code
        if code == 0:
            return Ending(0, reason_of(0, list(self._last)))
        code = self._process.poll()
        if code is None:
            return None
        self.stop()  # processes that it started, and that a signal to it alone has left
        return Ending(code, reason_of(code, list(self._last)))

    def stop(self) -> None:
        """End it now, with the processes that it started; the run can be continued."""
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # a command that it never read
                self._process.stdin.close()

    def _send(self, job: Job) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job.arguments()).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        """Copy the output into the log; if the disk is full, the training must not be the one that fails to print."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                text = line.decode(errors="replace").rstrip()
                if self.serves and text.startswith(ENDED):
                    self._code = int(text.removeprefix(ENDED))
                    continue
                self._last.append(text)
                _append(self._log, line)


def _log_of(job: Job, name: str) -> Path:
    """Return the log of a run, whose folder is made."""
    path = job.folder.path
    path.mkdir(parents=True, exist_ok=True)
    return path / name


def reason_of(code: int, lines: list[str]) -> str:
    """Return why a process ended: the error that it printed last, or its signal.

    >>> reason_of(-9, ["epoch 1/12"])
    'killed by SIGKILL'
    >>> reason_of(2, ["epoch 1/12", "coattend: training diverged: the loss is nan.", ""])
    'training diverged: the loss is nan.'
    """
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    printed = [line for line in lines if line.strip()]
    errors = [line.removeprefix("coattend: ") for line in printed if line.startswith("coattend: ")]
    last = errors[-1] if errors else printed[-1] if printed else "nothing printed"
    return last if code in (MISTAKE, MachineError.exit_code, InUseError.exit_code) else f"exit code {code}: {last}"


def threads_of(folder: RunFolder, threads: int) -> int:
    """Return the threads for a run: those that it began with, on which its sums depend, if there are as many cores."""
    begun = folder.run.arithmetic if folder.checkpoint.is_file() and (folder.path / "run.json").is_file() else None
    recorded = re.findall(r"(\d+) threads", begun or "")
    return int(recorded[-1]) if recorded and int(recorded[-1]) <= cores() else threads


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _append(log: Path, line: bytes) -> None:
    try:
        with log.open("ab") as file:
            file.write(line)
    except OSError:
        return  # said by the run itself, whose own files do not fit either
