"""The explorer page in a real browser, opened from the file system: draw, turn, read what the networks say."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.data import load_data, make_preprocessing
from coattend.groups import transform_image
from coattend.models.classifier import Classifier, load_trained
from coattend.nn.observe import estimate_norm_statistics
from coattend.report.explorer.build import FIRST, write_explorer
from coattend.report.explorer.serve import page_server
from tests.report.conftest import Opened

SIDE = 28
MODELS = {  # with their preprocessing
    "plain": ("p4cnn:width=3", "scalar"),
    "slices": ("a_p4cnn:width=2", "scalar"),
    "mirrors": ("a_p4cnn:width=2,attention=output,group=p4m,head=max", "gcn"),
}
Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Networks that have seen digits, as training writes them; what they say is arbitrary but not flat."""
    folder = tmp_path_factory.mktemp("networks")
    images = load_data("mini").train.images[:64]
    files = []
    for name, (model, step) in MODELS.items():
        torch.manual_seed(1)
        preprocessing = make_preprocessing([step]).fit(images)
        network = ca.create_model(model).float()
        estimate_norm_statistics(network, [preprocessing(images)])
        one = Classifier(network, preprocessing, tuple("0123456789"), (1, SIDE, SIDE), "no training")
        one.save(folder / f"{name}.safetensors")
        files.append(folder / f"{name}.safetensors")
    return files


@pytest.fixture(scope="module")
def trained(networks: list[Path]) -> list[Classifier]:
    return [load_trained(file) for file in networks]


@pytest.fixture(scope="module")
def page_file(browser: Any, networks: list[Path]) -> Path:
    """The page in a file, where there is a browser to open it."""
    file = networks[0].parent / "page.html"
    write_explorer(networks, file)
    return file


@pytest.fixture
def explorer(page_file: Path, open_in_browser: Open) -> Opened:
    return at_rest(open_in_browser(page_file))


def at_rest(opened: Opened) -> Opened:
    """Wait until every number on the page belongs to the picture and the pose that are shown."""
    for _ in range(1800):
        # wait_for_function would evaluate a string inside the page, which the served page's policy forbids.
        if opened.page.evaluate("Boolean(window.explorer?.isAtRest())"):
            return opened
        opened.page.wait_for_timeout(50)  # milliseconds
    raise AssertionError(f"the page did not come to rest: {opened.complaints}")


def shown_pixels(opened: Opened) -> Tensor:
    return torch.tensor(opened.page.evaluate("window.explorer.pixels()")).view(1, 1, SIDE, SIDE)


def assert_agrees_with_torch(opened: Opened, trained: list[Classifier], pixels: Tensor) -> None:
    for one, found in zip(trained, opened.page.evaluate("window.explorer.networks()"), strict=True):
        with torch.no_grad():
            logits = one.eval()(pixels)[0]
        assert torch.allclose(torch.tensor(found["logits"]), logits.double(), rtol=0, atol=1e-4), found["title"]
        assert torch.allclose(torch.tensor(found["probabilities"]), logits.double().softmax(0), rtol=0, atol=1e-4)
    bars = opened.page.eval_on_selector_all(".bars li", "bars => bars.map((bar) => Number(bar.dataset.probability))")
    assert bars == [p for found in opened.page.evaluate("window.explorer.networks()") for p in found["probabilities"]]


def drag(opened: Opened, *points: tuple[float, float]) -> None:
    """A stroke through points of the pad, from 0 to 1 along each side."""
    box = opened.page.locator("#pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    opened.page.mouse.move(*places[0])
    opened.page.mouse.down()
    for place in places[1:]:
        opened.page.mouse.move(*place, steps=8)
    opened.page.mouse.up()


def test_all_quarter_turns_and_mirrors_agree_with_torch(explorer: Opened, trained: list[Classifier]) -> None:
    digit = load_data("mini").test.images[FIRST][None]
    for mirrored in (False, True):
        for turns in range(4):
            moved = torch.rot90(digit.flip(-1) if mirrored else digit, turns, (-2, -1))
            assert torch.equal(shown_pixels(explorer), moved.double())
            assert_agrees_with_torch(explorer, trained, moved)
            explorer.page.click("#quarter-left")
            at_rest(explorer)
        explorer.page.click("#mirror")
        at_rest(explorer)
    assert explorer.complaints == []
    assert [url.split(":")[0] for url in explorer.requests] == ["file", "blob"]


def test_other_angles_are_turned_as_torch_turns_them(explorer: Opened, trained: list[Classifier]) -> None:
    digit = load_data("mini").test.images[FIRST][None].double()
    explorer.page.locator("#angle").focus()
    for k in range(1, 61):
        explorer.page.keyboard.press("ArrowRight")
        if k in (30, 60):
            at_rest(explorer)
            expected = transform_image(digit, ca.cyclic(12), k // 30).clamp(0, 255)
            assert torch.allclose(shown_pixels(explorer), expected, rtol=0, atol=1e-9)
            assert_agrees_with_torch(explorer, trained, shown_pixels(explorer))
    assert explorer.page.text_content("#angle-text") == "60°"
    assert explorer.page.get_attribute("#angle", "aria-valuetext") == "60 degrees counter-clockwise"


def test_maps_brought_back_stand_still(explorer: Opened) -> None:
    pictures = """() => [...document.querySelectorAll("td canvas")].map((canvas) =>
        Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data))"""

    def change(before: list[list[int]]) -> float:
        now = explorer.page.evaluate(pictures)
        return max(abs(a - b) for old, new in zip(before, now, strict=True) for a, b in zip(old, new, strict=True))

    unmoved = explorer.page.evaluate(pictures)
    assert len(unmoved) == (6 + 7 + 7) * 4 + (7 + 7) * 8
    explorer.page.click("#quarter-right")
    at_rest(explorer)
    assert change(unmoved) > 50
    explorer.page.check("#back")
    assert change(unmoved) <= 2  # of 255: rounding of colours
    assert "all maps agree" in explorer.page.text_content(".difference")
    explorer.page.click("#mirror")
    at_rest(explorer)
    differences = [found["difference"] for found in explorer.page.evaluate("window.explorer.networks()")]
    assert differences[0] > 0.1
    assert differences[1] > 0.1
    assert differences[2] < 1e-4
    assert "its group has no mirrors" in explorer.page.text_content(".difference")


def test_draw_turn_and_read_the_prediction(explorer: Opened, trained: list[Classifier]) -> None:
    page = explorer.page
    page.click("#clear")
    at_rest(explorer)
    assert page.locator(".answer strong").all_text_contents() == ["–"] * 3
    assert page.locator("#circle-caption").text_content().startswith("Nothing drawn")
    assert page.eval_on_selector_all("#circle .curve", "all => all.map(curve => curve.getAttribute('d'))") == [""] * 3
    drag(explorer, (0.3, 0.25), (0.7, 0.25), (0.5, 0.8))
    at_rest(explorer)
    drawn = shown_pixels(explorer)
    assert drawn[0, 0, 7, 14] == 255
    assert drawn[0, 0, 20:].sum() > 0
    assert_agrees_with_torch(explorer, trained, drawn)
    page.click("#quarter-left")
    at_rest(explorer)
    assert torch.equal(shown_pixels(explorer), drawn.rot90(1, (-2, -1)))
    answers = page.locator(".answer strong").all_text_contents()
    for answer, found in zip(answers, page.evaluate("window.explorer.networks()"), strict=True):
        assert answer == str(torch.tensor(found["probabilities"]).argmax().item())

    drag(explorer, (0.1, 0.9), (0.2, 0.9))  # in a turned picture the line appears where it is drawn
    at_rest(explorer)
    assert shown_pixels(explorer)[0, 0, 25, 4] > 200
    page.click("#undo")
    at_rest(explorer)
    assert torch.equal(shown_pixels(explorer), drawn.rot90(1, (-2, -1)))
    page.click("#centre")
    at_rest(explorer)
    centred = shown_pixels(explorer)[0, 0]
    place = torch.arange(SIDE) + 0.5
    middle = [(centred.sum(axis) * place).sum() / centred.sum() for axis in (0, 1)]
    assert all(abs(m - SIDE / 2) < 0.3 for m in middle)
    assert explorer.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_usable_in_wide_and_narrow_windows(page_file: Path, open_in_browser: Open, width: int, scheme: str) -> None:
    touch = {"has_touch": True} if width < 500 else {}
    opened = at_rest(open_in_browser(page_file, width, color_scheme=scheme, **touch))
    page = opened.page
    assert opened.overflow() == 0
    bar = page.locator("#turn-bar").bounding_box()
    assert bar["y"] + bar["height"] <= 900  # the slider is in sight from the start
    reachable = """(element) => {
      element.scrollIntoView({ block: "center" });
      const box = element.getBoundingClientRect();
      const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
      return box.left >= 0 && box.right <= innerWidth && box.height >= 16 && element.contains(hit);
    }"""
    controls = page.locator("button, input, select, #pad")
    assert controls.count() == 3 + 20 + 1 + 4 + 2 + 1
    for k in range(controls.count()):
        assert controls.nth(k).evaluate(reachable), controls.nth(k).evaluate("(element) => element.outerHTML")
    nameless = """(all) => all.filter((element) =>
        !(element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.length)).length"""
    assert page.eval_on_selector_all("button, input, select, canvas[role], svg", nameless) == 0
    page.evaluate("scrollTo(0, 0)")
    if touch:
        page.tap("#pad")
        page.tap("#spin")
    else:
        drag(opened, (0.5, 0.5), (0.5, 0.6))
        page.click("#spin")
    page.wait_for_function("document.getElementById('angle').value > 20")
    page.click("#spin")
    at_rest(opened)
    assert shown_pixels(opened)[0, 0, 13:15, 13:15].min() > 100
    assert opened.complaints == []


def test_the_page_works_from_this_machine_too(page_file: Path, open_in_browser: Open) -> None:
    with page_server(page_file.read_text(encoding="utf-8"), port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opened = at_rest(open_in_browser(f"http://127.0.0.1:{server.server_port}/"))
        assert opened.complaints == []
        assert len(opened.requests) == 2
        server.shutdown()


def test_serving_ends_quietly_with_ctrl_c() -> None:
    code = (
        "from coattend.report.explorer.serve import page_server, serve\n"
        "serve(page_server('', 0), lambda address: print(address, flush=True), in_browser=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
