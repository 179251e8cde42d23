"""The terminal: text is printed as it is."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console without markup: names of files, classes and networks may contain square brackets and colons."""
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


def say(line: str) -> None:
    """Print a line, however long, without breaking it."""
    console().print(line, soft_wrap=True)
