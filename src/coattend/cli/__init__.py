"""The command line: every verb parses its arguments, calls the library and prints.

Verbs import what they need themselves: torch and Lightning Fabric take seconds, which ``coattend --help`` does without.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

from coattend._terminal import console, say
from coattend._words import missing
from coattend.cli import conversion, grids, images, networks, runs  # each registers its verbs
from coattend.cli.program import app, leads
from coattend.version import __version__

__all__ = ["conversion", "grids", "images", "main", "networks", "runs"]


def main() -> None:
    """Run a verb; a user error ends with one line and exit code 2 (or that of a RunError), Ctrl-C with 130."""
    if sys.argv[1:] == ["--version"]:
        say(f"coattend {__version__}")
        return
    try:
        sys.exit(app.cli(prog="coattend", description="Co-attentive equivariant networks."))
    except ValueError as error:
        _end(f"coattend: {error}", getattr(error, "exit_code", 2))
    except ModuleNotFoundError as error:
        if (remedy := missing(error)) is None:
            raise
        _end(f"coattend: {remedy}", 2)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at exit
        sys.exit(141)  # as a shell reports a program that SIGPIPE has ended
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _end(f"coattend: {where}{error.strerror or error}.", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("can't allocate memory|out of memory", str(error)):
            raise
        reason = str(error).partition("\n")[0] or "none left"
        _end(f"coattend: not enough memory ({reason}); use a smaller network, batch or image size.", 2)
    except KeyboardInterrupt:
        resumes = sys.argv[1] in ("train", "compare", "reproduce", "leaderboard")
        _end(
            "\ncoattend: stopped" + ("; the same command continues from the last whole epoch." if resumes else "."), 130
        )


def _end(message: str, code: int) -> NoReturn:
    """Print why it ended; of several processes that train as one, only the first prints and sets the exit code."""
    if not leads():
        sys.exit(0)  # another code makes a launcher kill the first process, perhaps before it has printed
    console(stderr=True).print(message, soft_wrap=True)
    sys.exit(code)
