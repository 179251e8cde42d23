"""Does any damaged file make a loader fail without a clear message, or is any accepted silently?

    python -m experiments.fuzz_files [--cases 1000] [--seed 0] [--only KIND...] [--replay CASE]

Hypothesis draws hostile files of every kind that the library reads: damaged bytes, foreign values, bombs, code. Each is
loaded in a forked child, through the command line where a verb is the loader. The stored cases of fuzz_seeds.txt are
run first. A case ends as

- clear: a ValueError of the library that names the file, or one line and exit code 2, or a check that fails
- accepted: nothing to complain about; what was loaded has been compared with the healthy file
- silent: damage was accepted            - traceback: any other exception
- unnamed: the message names no file     - hang: more than 10 s
- memory: more than 1 GB                 - crash: the process died
- escaped: code of a file ran, or something was written outside the case's own folder

All but the first two are failures; each is printed with the line that replays it, and the exit code is 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import tyro

from experiments.hostile import KINDS
from experiments.hostile.kinds import Case, Kind, RefusedError, SilentAcceptanceError, drawn_cases
from experiments.hostile.mutations import CANARY
from experiments.sandbox import Ending, judged, run_all, run_one

SEEDS = Path(__file__).with_name("fuzz_seeds.txt")
VERDICTS = ("clear", "accepted", "silent", "traceback", "unnamed", "hang", "memory", "crash", "escaped")
GOOD = ("clear", "accepted")


class Fuzzer:
    """A folder with a healthy example of every kind, a folder per case, and a canary file."""

    def __init__(self, root: Path, kinds: Sequence[str]) -> None:
        self.root = root
        self.canary = root / "canary"
        self.home = root / "home"
        for folder in (self.canary, self.home, root / "healthy", root / "cases"):
            folder.mkdir()
        self._set_environment()
        for name in kinds:
            (root / "healthy" / name).mkdir()
            ending = run_one(partial(self._prepared, name), seconds=120)
            if ending.verdict != "accepted":
                raise RuntimeError(f"no healthy example of {name}: {ending.detail}")

    def _set_environment(self) -> None:
        """Set up an environment in which started programs and written files are noticed."""
        ghostscript = self.root / "bin" / "gs"
        ghostscript.parent.mkdir()
        ghostscript.write_text(f'#!/bin/sh\ntouch "${CANARY}"\n')
        ghostscript.chmod(0o755)
        os.environ |= {
            "PATH": f"{ghostscript.parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            CANARY: str(self.canary / "preparation"),
            "COATTEND_DATA": str(self.home / "data"),
            "HF_HUB_CACHE": str(self.home / "hub"),
            "COLUMNS": "200",
        }

    def _prepared(self, name: str) -> tuple[str, str]:
        folder = self.root / "healthy" / name
        os.chdir(folder)
        KINDS[name].prepare(folder)
        return "accepted", ""

    def run(self, cases: Sequence[Case], workers: int) -> Iterator[tuple[Case, Ending]]:
        """Yield every case with its ending, as they come."""
        for number, ending in run_all((self._action(n, case) for n, case in enumerate(cases)), workers):
            folder = self._folder(number, cases[number])
            shutil.rmtree(folder, ignore_errors=True)
            escaped = [path for path in (self.canary / folder.name, *self._strangers()) if path.exists()]
            if escaped:
                ending = ending._replace(verdict="escaped", detail=f"{escaped}; {ending.detail}")
            yield cases[number], ending

    def _folder(self, number: int, case: Case) -> Path:
        return self.root / "cases" / f"{case.kind}{number}"

    def _strangers(self) -> list[Path]:
        known = {"canary", "home", "healthy", "cases", "bin"}
        return [path for path in self.root.iterdir() if path.name not in known]

    def _action(self, number: int, case: Case) -> _Attempt:
        return _Attempt(case, KINDS[case.kind], self._folder(number, case), self.root / "healthy" / case.kind)


class _Attempt:
    """One case in the child: copy the healthy example, damage it, load it."""

    def __init__(self, case: Case, kind: Kind, folder: Path, healthy: Path) -> None:
        self.case, self.kind, self.folder, self.healthy = case, kind, folder, healthy

    def __call__(self) -> tuple[str, str]:
        shutil.copytree(self.healthy, self.folder, symlinks=True)
        os.chdir(self.folder)
        os.environ[CANARY] = str(self.folder.parent.parent / "canary" / self.folder.name)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.folder)
        self.kind.damages[self.case.damage].apply(self.folder, *self.case.arguments)
        try:
            self.kind.attempts[self.case.attempt](self.folder, self.healthy)
        except RefusedError as error:
            return "clear", str(error)
        except SilentAcceptanceError as error:
            return "silent", str(error)
        except BaseException as error:  # noqa: BLE001 (that is the question)
            verdict, detail = judged(error)
            named = self.folder.name in str(error)
            return ("unnamed" if verdict == "clear" and not named else verdict), detail
        return "accepted", ""


def warm_up() -> None:
    """Import what every child would import again, and use one thread, which survives a fork."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import huggingface_hub.errors  # noqa: F401
    import onnx  # noqa: F401
    import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
    import PIL.Image  # noqa: F401
    import scipy.stats  # type: ignore[import-untyped]  # noqa: F401

    from coattend.functional import build_kernels

    build_kernels()  # compiled now if it has to be, and not by every child


def kept_cases() -> list[Case]:
    """Return the cases that failed once, and the catalogue of triggers."""
    lines = SEEDS.read_text(encoding="utf-8").splitlines() if SEEDS.is_file() else []
    return [Case.parse(line) for line in lines if line.strip() and not line.startswith("#")]


def chosen_cases(count: int, seed: int, only: Sequence[str]) -> list[Case]:
    """Return the stored cases, followed by drawn ones up to ``count``."""
    cases = [case for case in kept_cases() if case.kind in only]
    left, shares = max(0, count - len(cases)), sum(KINDS[name].share for name in only)
    for name in only:
        cases += drawn_cases(name, KINDS[name], -(-left * KINDS[name].share // shares), seed)
    return cases


def main(
    cases: int = 1000,
    seed: int = 0,
    only: tuple[str, ...] = tuple(KINDS),
    replay: str | None = None,
    kept: bool = False,
    workers: int = 2,
) -> int:
    """Print a line per failure and a table.

    Args:
        cases: Number of cases, stored ones included.
        seed: Seed of the drawn cases.
        only: Kinds of files.
        replay: One case, as a failure was printed.
        kept: Run the stored cases only.
        workers: Processes at a time.
    """
    if unknown := set(only) - set(KINDS):
        raise SystemExit(f"--only expects some of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}.")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    started = time.monotonic()
    warm_up()
    chosen = [Case.parse(replay)] if replay else chosen_cases(0 if kept else cases, seed, only)
    counts: dict[str, Counter[str]] = {name: Counter() for name in KINDS if any(c.kind == name for c in chosen)}
    slowest, largest = 0.0, 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        for case, ending in Fuzzer(Path(root), list(counts)).run(chosen, workers):
            counts[case.kind][ending.verdict] += 1
            slowest, largest = max(slowest, ending.seconds), max(largest, ending.peak)
            if ending.verdict not in GOOD or replay:
                detail = " ".join(ending.detail.split())[:300]
                print(f"{ending.verdict}: {detail}\n    --replay '{case}'", flush=True)
    print(f"\n| kind | cases | {' | '.join(VERDICTS)} |\n|---|---|{'---|' * len(VERDICTS)}")
    for name, found in {**counts, "all": sum(counts.values(), Counter())}.items():
        print(f"| {name} | {found.total()} | {' | '.join(str(found[verdict]) for verdict in VERDICTS)} |")
    seconds = time.monotonic() - started
    print(f"\nseed {seed}, {seconds:.0f} s in all; slowest {slowest:.1f} s, most memory {largest / 1e6:.0f} MB")
    return int(any(found[verdict] for found in counts.values() for verdict in VERDICTS if verdict not in GOOD))


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
