"""A reader of the tables of a report."""

from __future__ import annotations

from html.parser import HTMLParser


class Tables(HTMLParser):
    """Every table of a page: its data-* attributes, and its body's cells by row, with data-field where there is one."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[dict[str, str]] = []
        self.rows: list[list[list[tuple[str, str]]]] = []
        self.open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key.removeprefix("data-"): value or "" for key, value in attrs}
        if tag == "table":
            self.tables.append(values)
            self.rows.append([])
        elif tag == "tr":
            self.rows[-1].append([])
        elif tag in ("td", "th"):
            self.rows[-1][-1].append((values.get("field", tag), ""))
            self.open = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            field, text = self.rows[-1][-1][-1]
            self.rows[-1][-1][-1] = (field, text + data)

    def named(self, kind: str, **values: str) -> list[list[list[tuple[str, str]]]]:
        """The rows below the heading of every table of a kind with these attributes."""
        return [
            [row for row in rows if any(field != "th" for field, _ in row)]
            for table, rows in zip(self.tables, self.rows, strict=True)
            if table.get("table") == kind and all(table.get(key) == value for key, value in values.items())
        ]
