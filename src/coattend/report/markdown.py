"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, ending in a newline.

    >>> print(markdown_table(["network", "error"], [["p4cnn", "2.28"]]), end="")
    | network | error |
    |---|---|
    | p4cnn | 2.28 |
    """
    lines = [headings, *rows]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([text[0], "|---" * len(headings) + "|", *text[1:]]) + "\n"
