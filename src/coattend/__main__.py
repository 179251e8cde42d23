"""``python -m coattend``."""

import signal

from coattend.cli import main


def run() -> None:
    """Run a verb as a program of its own: after its end, Ctrl-C interrupts nothing but the interpreter's farewell."""
    try:
        main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    run()
