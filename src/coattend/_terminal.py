"""The terminal: text is printed as it is, progress on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.text import Text


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console without markup: names of files, classes and networks may contain square brackets and colons."""
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


def say(line: str) -> None:
    """Print a line, however long, without breaking it."""
    console().print(line, soft_wrap=True)


@contextmanager
def fetch_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar for each file that is downloaded or generated."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console(stderr=True)) as bars:
        tasks = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is in progress; the function that it returns replaces the text."""
    with console(stderr=True).status(Text(what)) as status:
        yield lambda text: status.update(Text(text))
