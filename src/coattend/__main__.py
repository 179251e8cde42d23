"""``python -m coattend``."""

import signal
import sys


def run() -> None:
    """Run a verb as a program of its own; after its end, Ctrl-C no longer interrupts the interpreter's shutdown."""
    try:
        from coattend.cli import main

        main()
    except KeyboardInterrupt:  # while the command line itself is loaded
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    run()
