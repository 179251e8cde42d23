"""``python -m coattend.grid.leash ...`` is ``coattend ...`` that ends with the process that started it.

Its standard input is a pipe that only that process holds. When that process ends in any way, the pipe is closed, and no
orphan keeps the lock of a run. Ending at once loses nothing: a run continues from its last whole epoch.

Without arguments it carries out commands one after another, which are lines of its input, each a JSON list of words,
and prints a line with the exit code after each; the first that fails ends it. Python and torch start once for all.
"""

import json
import os
import runpy
import signal
import sys
import threading
from queue import SimpleQueue

ENDED = "\0ended "  # starts the line with the exit code


def _listen(commands: "SimpleQueue[list[str]]") -> None:
    with os.fdopen(0, "rb", closefd=False) as pipe:
        for line in pipe:
            commands.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGKILL)


def _carried_out(words: list[str]) -> int:
    sys.argv = ["coattend", *words]
    try:
        runpy.run_module("coattend", run_name="__main__")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    return 0


if __name__ == "__main__":
    waiting: "SimpleQueue[list[str]]" = SimpleQueue()
    threading.Thread(target=_listen, args=(waiting,), daemon=True).start()
    if sys.argv[1:]:
        runpy.run_module("coattend", run_name="__main__")
    else:
        code = 0
        while code == 0:
            code = _carried_out(waiting.get())
            sys.stderr.flush()
            sys.stdout.write(f"{ENDED}{code}\n")
            sys.stdout.flush()
        sys.exit(code)
