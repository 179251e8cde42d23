"""Make docs/assets/explore.png and explore-narrow.png from a page written by `coattend explore --to`.

    coattend explore --to explore.html
    python tools/photograph_explorer.py explore.html

Needs Playwright and a Chromium (COATTEND_BROWSER, or the one in PATH).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parents[1] / "docs" / "assets"
HARD_DIGIT = 11  # of the gallery; networks doubt about it at some angles
AT_REST = "window.explorer && window.explorer.isAtRest()"
TURN = "(angle) => { const slider = document.getElementById('angle'); slider.value = angle; slider.oninput(); }"


def main() -> None:
    """Open the page wide and narrow, turn the digit, and photograph what is in the window."""
    address = Path(sys.argv[1]).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("COATTEND_BROWSER") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        wide = browser.new_page(viewport={"width": 1280, "height": 1130})
        _turned(wide, address, 30)
        wide.screenshot(path=PICTURES / "explore.png")
        narrow = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        _turned(narrow, address, 90)
        narrow.locator("article").last.scroll_into_view_if_needed()
        narrow.screenshot(path=PICTURES / "explore-narrow.png")
        browser.close()


def _turned(page: Page, address: str, angle: int) -> None:
    page.goto(address)
    page.wait_for_function(AT_REST)
    page.locator("#gallery button").nth(HARD_DIGIT).click()
    page.evaluate(TURN, angle)
    page.wait_for_function(AT_REST)


if __name__ == "__main__":
    main()
