"""Does any wrong call of the Python interface end in something that the caller cannot understand?

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

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter

import torch

from coattend.functional import build_kernels
from experiments.calls import PARTS
from experiments.calls.call import SHAPES_ONLY, Call
from experiments.sandbox import judged, run_all

VERDICTS = ("clear", "fine", "answered", "obscure", "hang", "memory", "crash")
GOOD = ("clear", "fine")


class _Judged:
    """One call, in the child."""

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
    """Python's answer to an unknown keyword, or torch's to an operator's argument of another type."""
    if call.name.startswith("torch.ops "):
        return isinstance(error, RuntimeError) and "Expected a value of type" in str(error)
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    called = call.name.partition("(")[0]
    return isinstance(error, TypeError) and raised_in == __file__ and called in str(error)


def main() -> int:
    """Print a line per failure and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part of the interface")
    parser.add_argument("--call", help="one call, by its name")
    parser.add_argument("--show", action="store_true", help="also print the calls that were rightly answered")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    build_kernels()  # compiled now if it has to be, and not by every child
    calls = [
        (part, call)
        for part, calls in PARTS.items()
        for call in calls
        if options.only in (None, part) and options.call in (None, call.name)
    ]
    counts: dict[str, Counter[str]] = {part: Counter() for part, _ in calls}
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        for number, ending in run_all((_Judged(call) for _, call in calls), options.workers):
            part, call = calls[number]
            counts[part][ending.verdict] += 1
            if ending.verdict not in GOOD or options.call or (options.show and ending.verdict == "fine"):
                print(f"{ending.verdict}: {call.name}: {' '.join(ending.detail.split())[:200]}", flush=True)
    print(f"\n| part | calls | {' | '.join(VERDICTS)} |\n|---|---|{'---|' * len(VERDICTS)}")
    for part, found in {**counts, "all": sum(counts.values(), Counter())}.items():
        print(f"| {part} | {found.total()} | {' | '.join(str(found[verdict]) for verdict in VERDICTS)} |")
    print(f"\n{time.monotonic() - started:.0f} s in all")
    return int(any(found[verdict] for found in counts.values() for verdict in VERDICTS if verdict not in GOOD))


if __name__ == "__main__":
    sys.exit(main())
