"""The report in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coattend.data import load_data
from coattend.report.page import write_report
from coattend.train import compare
from tests.runs import ATTENTIVE, CONVENTIONAL, run_folder

TISSUE = ("Drüsen Gewebe", "Faser Bindegewebe", "dichte Zellkerne")


@pytest.fixture(scope="module")
def page(browser: Any, trained_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [run_folder(trained_runs, model) for model in (CONVENTIONAL, ATTENTIVE)]
    return write_report(runs, tmp_path_factory.mktemp("report") / "report.html")


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
    assert links.count() == 10
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


@pytest.fixture(scope="module")
def tissue(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on networks with long names, trained on classes with long names."""
    root = tmp_path_factory.mktemp("tissue")
    digits = load_data("mini").test
    few = digits.labels < len(TISSUE)
    images, labels = digits.images[few, 0].numpy(), digits.labels[few].numpy()
    np.savez(root / "tissue.npz", images=images, labels=labels, classes=TISSUE)
    models = ["p4cnn:width=1,head=max", "p4cnn:width=1,head=max,norm_eps=0.001"]
    settings = ["epochs=1", "train_images=32", "test_images=30"]
    compare(models, (0,), "quick", root / "runs", data=str(root / "tissue.npz"), settings=settings)
    return write_report([root / "runs"])


@pytest.mark.parametrize("width", [1280, 390])
def test_no_number_is_out_of_sight(tissue: Path, open_in_browser: Callable[..., Any], width: int) -> None:
    opened = open_in_browser(tissue, width)
    assert opened.overflow() == 0
    hidden = """(table) => [...table.querySelectorAll("td, tbody th")].filter((cell) => {
      const box = cell.getBoundingClientRect(), region = table.parentElement.getBoundingClientRect();
      return box.width && (box.left < region.left - 1 || box.right > region.right + 1);
    }).length"""
    for kind, count in (("errors", 1), ("confusion", 2), ("angles", 1)):
        tables = opened.page.locator(f"[data-table={kind}]")
        assert tables.count() == count
        for place in range(count):
            assert tables.nth(place).evaluate(hidden) == 0, kind
    heights = opened.page.eval_on_selector_all(
        ".confusion tbody tr", "rows => rows.map(row => row.getBoundingClientRect().height)"
    )
    assert max(heights) < 60  # names run across, not one letter per line


def test_names_of_networks_break_before_options_only(tissue: Path, open_in_browser: Callable[..., Any]) -> None:
    opened = open_in_browser(tissue, 1280)
    lines = """(cell) => {
      const range = document.createRange(), lines = new Map();
      for (const node of cell.childNodes) for (let k = 0; k < (node.length ?? 0); k++) {
        range.setStart(node, k); range.setEnd(node, k + 1);
        const y = Math.round(range.getBoundingClientRect().y);
        lines.set(y, (lines.get(y) ?? "") + node.data[k]);
      }
      return [...lines.values()];
    }"""
    for cell in opened.page.locator("[data-table=errors] tbody th").all():
        *before, last = cell.evaluate(lines)
        assert all(line.endswith((":", ",")) for line in before), (before, last)


def test_what_scrolls_shows_that_it_does(tissue: Path, open_in_browser: Callable[..., Any]) -> None:
    opened = open_in_browser(tissue, 390)
    assert "gradient" in opened.page.evaluate("getComputedStyle(document.querySelector('.scroll')).backgroundImage")
