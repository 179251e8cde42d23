"""The report in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coattend.report.page import write_report
from tests.report.some_runs import ATTENTIVE, CONVENTIONAL, train_some


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    train_some(root, (CONVENTIONAL, ATTENTIVE))
    return write_report([root])


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_complaint_network_or_overflow(
    page: Path, open_in_browser: Callable[..., Any], width: int, scheme: str
) -> None:
    opened = open_in_browser(page, width, color_scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert opened.complaints == []
    assert [request for request in opened.requests if not request.startswith(("file:", "data:"))] == []
    assert opened.overflow() == 0


def test_its_parts_can_be_reached_and_read_aloud(page: Path, open_in_browser: Callable[..., Any]) -> None:
    opened = open_in_browser(page)
    links = opened.page.locator("nav a")
    assert links.count() == 9
    for place in range(links.count()):
        links.nth(place).click()
        target = opened.page.locator(links.nth(place).get_attribute("href"))
        assert target.locator("h2").first.is_visible()
    figures = opened.page.locator("figure svg")
    assert figures.count() >= 7
    unnamed = "[...document.querySelectorAll('figure svg')].filter(svg => !svg.getAttribute('aria-label')).length"
    assert opened.page.evaluate(unnamed) == 0
    levels = opened.page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    repeated = "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(e => e.id))"
    assert opened.page.evaluate(repeated) == 0


def test_charts_take_the_colour_of_the_text(page: Path, open_in_browser: Callable[..., Any]) -> None:
    drawn = {}
    for scheme in ("light", "dark"):
        opened = open_in_browser(page, color_scheme=scheme)
        drawn[scheme] = opened.page.evaluate("getComputedStyle(document.querySelector('figure svg')).color")
        assert drawn[scheme] == opened.page.evaluate("getComputedStyle(document.body).color")
    assert drawn["light"] != drawn["dark"]
