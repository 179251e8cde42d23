"""Does any wrong call of the Python interface end without a clear message?

    python -m experiments.wrong_calls [--only PART] [--show]

Calls layers, functions, operators, models, data and training with None, arrays, other types, ranks, layouts and
devices, nothing, too much, NaN, negative numbers, unknown names and unknown keywords, each in a forked child. A call
ends as

- clear: a ValueError that the library itself raises, or Python's own TypeError about a keyword, naming what was called
- fine: answered, and the catalogue says why that is right (--show prints them)
- answered: answered, though it should have been refused
- obscure: any other exception, or one from inside torch or numpy
- hang, memory, crash: more than 10 s, more than 1 GB, a dead process

All but the first two are failures, and the exit code is 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter

import torch
import tyro

from coattend.functional import build_kernels
from experiments.calls import PARTS
from experiments.calls.call import SHAPES_ONLY, Call
from experiments.sandbox import judged, run_all

VERDICTS = ("clear", "fine", "answered", "obscure", "hang", "memory", "crash")
GOOD = ("clear", "fine")


class _Judged:
    """One call in the child."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self) -> tuple[str, str]:
        os.chdir(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))
        warnings.simplefilter("ignore")
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            answer = self.call.function()
        except BaseException as error:  # noqa: BLE001 (that is the question)
            verdict, detail = judged(error)
            return ("clear" if verdict == "clear" or _is_signature_error(error, self.call) else "obscure"), detail
        said = f"{type(answer).__name__} {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else repr(answer)
        on_meta = isinstance(answer, torch.Tensor) and answer.is_meta
        fine = self.call.fine and (on_meta or self.call.fine != SHAPES_ONLY)
        return ("fine", self.call.fine) if fine else ("answered", said[:100])


def _is_signature_error(error: BaseException, call: Call) -> bool:
    """Return whether Python refused an unknown keyword, or torch an argument of another type."""
    if call.name.startswith("torch.ops "):
        return isinstance(error, RuntimeError) and "Expected a value of type" in str(error)
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    called = call.name.partition("(")[0]
    return isinstance(error, TypeError) and raised_in == __file__ and called in str(error)


def main(only: str | None = None, call: str | None = None, show: bool = False, workers: int = 2) -> int:
    """Print a line per failure and a table.

    Args:
        only: One part of the interface.
        call: One call, by its name.
        show: Also print the calls that were rightly answered.
        workers: Processes at a time.
    """
    if only not in (None, *PARTS):
        raise SystemExit(f"--only expects one of {', '.join(PARTS)}, got {only}.")
    started = time.monotonic()
    torch.set_num_threads(1)
    build_kernels()  # compiled now if it has to be, and not by every child
    calls = [
        (part, entry)
        for part, entries in PARTS.items()
        for entry in entries
        if only in (None, part) and call in (None, entry.name)
    ]
    counts: dict[str, Counter[str]] = {part: Counter() for part, _ in calls}
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        for number, ending in run_all((_Judged(entry) for _, entry in calls), workers):
            part, entry = calls[number]
            counts[part][ending.verdict] += 1
            if ending.verdict not in GOOD or call or (show and ending.verdict == "fine"):
                print(f"{ending.verdict}: {entry.name}: {' '.join(ending.detail.split())[:200]}", flush=True)
    print(f"\n| part | calls | {' | '.join(VERDICTS)} |\n|---|---|{'---|' * len(VERDICTS)}")
    for part, found in {**counts, "all": sum(counts.values(), Counter())}.items():
        print(f"| {part} | {found.total()} | {' | '.join(str(found[verdict]) for verdict in VERDICTS)} |")
    print(f"\n{time.monotonic() - started:.0f} s in all")
    return int(any(found[verdict] for found in counts.values() for verdict in VERDICTS if verdict not in GOOD))


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
