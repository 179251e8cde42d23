"""Run actions in forked children with limits on time and memory, and report how each ended.

A child of a process that has imported everything starts in milliseconds, and whatever it breaks ends with it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import coattend

PACKAGE = str(Path(coattend.__file__).parent)
SECONDS = 10  # of processor time that an action may take: a busy machine must not change the verdict
PATIENCE = 30.0  # seconds in which an action must have had some processor time, else it waits for something
MEMORY = 1 << 30  # bytes an action may take
CAP = 3 << 30  # bytes that the operating system grants it: a bomb must not exhaust the machine

Action = Callable[[], "tuple[str, str]"]  # a verdict and a line about it


class Ending(NamedTuple):
    """How an action ended: its own verdict, or "hang", "memory" or "crash"."""

    verdict: str
    detail: str
    seconds: float
    peak: int


@dataclass
class _Child:
    number: int
    pid: int
    pipe: int
    started: float
    answer: bytes = b""
    used: float = -1.0
    last_used: float = 0.0

    def is_stuck(self) -> bool:
        """Return whether it has not had processor time for long."""
        used = sum(map(int, Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        if used != self.used:
            self.used, self.last_used = used, time.monotonic()
        return time.monotonic() - self.last_used > PATIENCE


def run_all(actions: Iterable[Action], workers: int, seconds: int = SECONDS) -> Iterator[tuple[int, Ending]]:
    """Run every action in its own child, ``workers`` at a time; yield numbers and endings as they come."""
    waiting = enumerate(actions)
    running: dict[int, _Child] = {}
    exhausted = False
    while running or not exhausted:
        while not exhausted and len(running) < workers:
            number, action = next(waiting, (0, None))
            if action is None:
                exhausted = True
            else:
                child = _forked(number, action, seconds)
                running[child.pipe] = child
        if not running:
            continue
        for pipe in select.select(list(running), [], [], 1.0)[0]:
            answer = os.read(pipe, 1 << 16)
            running[pipe].answer += answer
            if not answer:
                child = running.pop(pipe)
                yield child.number, _ending(child)
        for child in [child for child in running.values() if child.is_stuck()]:
            del running[child.pipe]
            os.kill(child.pid, signal.SIGKILL)
            yield child.number, _ending(child)._replace(verdict="hang", detail=f"idle for {PATIENCE:.0f} s")


def run_one(action: Action, seconds: int = SECONDS) -> Ending:
    """Run one action in its own child."""
    ((_, ending),) = run_all([action], 1, seconds)
    return ending


def judged(error: BaseException) -> tuple[str, str]:
    """Classify an exception for a user: "clear" if this library raised a ValueError itself, else a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    place = f"{Path(ours[-1].filename).relative_to(PACKAGE)}:{ours[-1].lineno}" if ours else "outside"
    raised_here = bool(ours) and frames[-1] is ours[-1] and (ours[-1].line or "").startswith("raise")
    text = f"{type(error).__name__} @{place}: {str(error) or 'no message'}"
    return "clear" if isinstance(error, ValueError) and raised_here and str(error) else "traceback", text


def _forked(number: int, action: Action, seconds: int) -> _Child:
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _limit(seconds)
        _answer(writer, {"before": _resident()})
        try:
            verdict, detail = action()
        except BaseException as error:  # noqa: BLE001 (the child must answer)
            verdict, detail = "traceback", f"{type(error).__name__}: {error}"
        _answer(writer, {"verdict": verdict, "detail": detail})
        os._exit(0)
    os.close(writer)
    return _Child(number, pid, reader, time.monotonic())


def _ending(child: _Child) -> Ending:
    _, status, used = os.wait4(child.pid, 0)
    os.close(child.pipe)
    said = [json.loads(line) for line in child.answer.splitlines()]
    seconds = time.monotonic() - child.started
    peak = max(0, used.ru_maxrss * 1024 - said[0]["before"]) if said else 0
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return Ending("hang", f"still busy after {seconds:.0f} s", seconds, peak)
    if len(said) < 2:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        return Ending("crash", f"ended by {how} without an answer", seconds, peak)
    if peak > MEMORY:
        return Ending("memory", f"took {peak / 1e9:.1f} GB; {said[1]['verdict']}: {said[1]['detail']}", seconds, peak)
    return Ending(said[1]["verdict"], said[1]["detail"], seconds, peak)


def _answer(pipe: int, content: dict[str, object]) -> None:
    content = {key: value[:2000] if isinstance(value, str) else value for key, value in content.items()}
    os.write(pipe, json.dumps(content).encode() + b"\n")


def _limit(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + CAP
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
