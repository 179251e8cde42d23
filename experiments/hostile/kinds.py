"""Kinds of hostile files: a healthy example, ways to damage it, and ways to load it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Drawn = TypeVar("Drawn")
Arguments = st.SearchStrategy[list[Any]]  # values that JSON can hold


class SilentAcceptanceError(Exception):
    """A loader accepted something damaged."""


class RefusedError(Exception):
    """A command refused by its exit code; the message is what it printed."""


class ObscureError(Exception):
    """A command failed with a message that does not help."""


@dataclass(frozen=True)
class Damage:
    """A way to damage the example in a folder; ``apply(folder, *arguments)`` does it."""

    arguments: Arguments
    apply: Callable[..., None]


@dataclass(frozen=True)
class Kind:
    """One kind of file. ``attempts`` load what is in the first folder; the second holds the healthy example."""

    share: int  # of a thousand cases
    prepare: Callable[[Path], None]
    damages: dict[str, Damage]
    attempts: dict[str, Callable[[Path, Path], None]]


@dataclass(frozen=True)
class Case:
    """One hostile file and one way to load it; its text is enough to make it again."""

    kind: str
    damage: str
    attempt: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.damage} {self.attempt} {json.dumps(self.arguments)}"

    @staticmethod
    def parse(text: str) -> Case:
        """Invert ``str``."""
        kind, damage, attempt, arguments = text.strip().split(" ", 3)
        return Case(kind, damage, attempt, tuple(json.loads(arguments)))


def drawn_cases(name: str, kind: Kind, count: int, random_seed: int) -> list[Case]:
    """Draw cases of one kind, the same ones for the same seed: every damage about equally often."""
    cases: list[Case] = []
    for number, (damage, how) in enumerate(kind.damages.items()):
        # A damage with few arguments leaves its places to the next ones.
        wanted = (count - len(cases)) // (len(kind.damages) - number)
        tried = st.tuples(how.arguments, st.sampled_from(list(kind.attempts)))
        for arguments, attempt in _examples(tried, wanted, random_seed):
            cases.append(Case(name, damage, attempt, tuple(arguments)))
    return cases


def _examples(strategy: st.SearchStrategy[Drawn], count: int, random_seed: int) -> list[Drawn]:
    found: list[Drawn] = []

    @seed(random_seed)
    @settings(
        max_examples=max(1, count),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Drawn) -> None:
        found.append(example)

    collect()
    return found[:count]


def command(*arguments: object, refusing: Sequence[int] = (1,)) -> str:
    """Run the command line in this process and return its output; a mistake of the user is raised again."""
    from coattend.cli import main

    printed, complaint = io.StringIO(), io.StringIO()
    sys.argv = ["coattend", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            main()
    except SystemExit as end:
        if end.code in refusing:
            raise RefusedError(printed.getvalue().strip() or complaint.getvalue().strip()) from None
        if end.code:
            cause = end.__context__
            message = complaint.getvalue()
            if end.code != 2 or "coattend: " not in message or "Traceback" in message or cause is None:
                raise ObscureError(f"exit {end.code}: {message.strip()}") from None
            raise cause from None
    return printed.getvalue()
