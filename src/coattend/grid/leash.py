"""``python -m coattend.grid.leash ...`` is ``coattend ...`` that ends with the process that started it.

Its standard input is a pipe that only that process holds. When that process ends in any way, the pipe is closed, and no
orphan keeps the lock of a run. Ending at once loses nothing: a run continues from its last whole epoch.
"""

import os
import runpy
import signal
import threading


def _end_with_the_starter() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    runpy.run_module("coattend", run_name="__main__")
