"""Pages opened in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Opened:
    """A page of Playwright with what the browser complained about and asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def overflow(self) -> int:
        """How many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser test: `pip install playwright` first")
    executable = os.environ.get("COATTEND_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("no browser test: install Debian's chromium, or name a Chromium or Chrome in COATTEND_BROWSER")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_in_browser(browser: Any) -> Iterator[Callable[..., Opened]]:
    """``open_in_browser(path or address, width=1280, height=900, **context)``: the page, loaded."""
    contexts = []

    def open_page(where: Path | str, width: int = 1280, height: int = 900, **options: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(90_000)  # milliseconds; a page with networks inside is slow on a busy machine
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on(
            "console", lambda m: opened.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        return opened

    yield open_page
    for context in contexts:
        context.close()
