"""Pictures of one image: written for any network and image, the same each time, with a word where something is odd."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

from coattend.data import load_data, make_preprocessing
from coattend.models import create_model
from coattend.models.classifier import Classifier
from coattend.report.attend import attend, fitted_image, look
from coattend.report.page import write_report
from coattend.report.runs import find_runs
from coattend.report.style import save
from coattend.train import load_trained
from tests.report.runs import ATTENTIVE, PLAIN, train_some

Image = pytest.importorskip("PIL.Image")
SLICED = "a_p4cnn:width=2"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("trained")
    train_some(root, (SLICED, ATTENTIVE, PLAIN))
    return {run.model: run.folder.path for run in find_runs([root])[0]}


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    path = tmp_path / "digit.png"
    Image.fromarray(load_data("mini").test.images[0, 0].numpy()).save(path)
    return path


def test_every_layer_is_written_and_the_same_each_time(folders: dict[str, Path], digit: Path, tmp_path: Path) -> None:
    said = list(attend(str(folders[ATTENTIVE]), digit, tmp_path / "pictures"))
    assert all(line.startswith("wrote ") for line in said)
    written = {path.name: path for path in (tmp_path / "pictures").iterdir()}
    layers = [f"layer{k}" for k in range(1, 8)]
    assert set(written) == {f"{name}{suffix}" for name in (*layers, "matrices") for suffix in (".png", ".svg")}
    again = look(load_trained(folders[ATTENTIVE] / "best.safetensors"), load_data("mini").test.images[0])
    for path in save(again.figure(2), tmp_path / "layer3"):
        assert path.read_bytes() == written[path.name].read_bytes()


@pytest.mark.parametrize("model", [SLICED, PLAIN])
def test_every_kind_of_network_is_drawn(folders: dict[str, Path], model: str) -> None:
    seen = look(load_trained(folders[model]), load_data("mini").test.images[0])
    assert len(seen.views) == (7 if model == SLICED else 6)
    texts = " ".join(text.get_text() for text in seen.figure(1).texts)
    assert f"{model}: layer 2 of {len(seen.views)}" in texts
    assert ("This network has no attention" in texts) == (model == PLAIN)
    moved = "Equal rows mean that they moved in step" if model == SLICED else "The rows are not equal"
    assert moved in texts.replace("\n", " ")


def test_a_plain_network_and_an_odd_image_are_told(folders: dict[str, Path], tmp_path: Path) -> None:
    picture = tmp_path / "wide.png"
    Image.new("RGB", (60, 40), (200, 30, 90)).save(picture)
    said = attend(str(folders[PLAIN]), picture, tmp_path / "pictures")
    assert next(said).endswith(
        "colour is made grey; 60 x 40 pixels are scaled to 28 x 28, the longer side cut at both ends"
    )
    assert next(said) == f"{PLAIN} has no attention, so the pictures show its responses only"
    assert next(said) == f"wrote {tmp_path / 'pictures' / 'layer1.png'}"


def test_mistakes_are_explained(folders: dict[str, Path], digit: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        list(attend("nowhere.safetensors", digit, tmp_path))
    with pytest.raises(ValueError, match=r"absent\.png"):
        list(attend(str(folders[PLAIN]), tmp_path / "absent.png", tmp_path))
    with pytest.raises(ValueError, match="is not a run folder"):
        list(attend(str(tmp_path), digit, tmp_path))
    with pytest.raises(ValueError, match="is a file; expected the name of a folder"):
        next(attend(str(folders[PLAIN]), digit, digit))
    with pytest.raises(ValueError, match="cannot write /proc/pictures"):
        next(attend(str(folders[PLAIN]), digit, Path("/proc/pictures")))


def test_images_are_fitted_and_left_alone_if_they_fit() -> None:
    grey = torch.randint(0, 255, (1, 28, 28), dtype=torch.uint8)
    same, changes = fitted_image(grey, (1, 28, 28))
    assert torch.equal(same, grey)
    assert changes == ""
    colour, changes = fitted_image(grey, (3, 32, 32))
    assert colour.shape == (3, 32, 32)
    assert changes == "grey is taken as colour; 28 x 28 pixels are scaled to 32 x 32"


@pytest.mark.parametrize("label", ["Faser Bindegewebe", "a class of two dozen words " * 5, "x" * 60, "$x_$"])
def test_long_names_neither_overlap_nor_leave_the_picture(label: str) -> None:
    network = create_model("p4cnn:group=p4m,width=1").float().eval()
    images = load_data("mini").test.images
    one = Classifier(network, make_preprocessing(["scalar"]).fit(images), (label,) * 10, (1, 28, 28), "")
    figure = look(one, images[0]).figure(0)
    figure.draw_without_rendering()
    titles = [axes.title.get_window_extent() for axes in figure.axes[:8]]
    strips = [axes.get_window_extent() for axes in figure.axes[:8]]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(titles))
    assert not any(title.overlaps(strip) for title in titles for strip in strips)
    heading = figure.texts[0].get_window_extent()
    assert not any(title.overlaps(heading) for title in titles)
    names = [text.get_window_extent() for text in figure.axes[8].get_yticklabels()]
    assert len(names) == 8
    assert all(name.x0 >= 0 for name in names)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(names, 2))


def test_missing_libraries_are_named(
    folders: dict[str, Path], digit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it fails, as if it were not installed
    with pytest.raises(ValueError, match=r"run `pip install -e '\.\[plot\]'`"):
        list(attend(str(folders[ATTENTIVE]), digit, tmp_path / "pictures"))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"run `pip install -e '\.\[plot\]'`"):
        write_report([folders[ATTENTIVE]], tmp_path / "report.html")
