"""Pictures of one image: written for any network and image, reproducible, with notes on what was adapted."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

from coattend.data import load_data, make_preprocessing
from coattend.models import create_model
from coattend.models.classifier import Classifier
from coattend.nn import PoseAttention
from coattend.report.attend import attend, fitted_image, posed_views
from coattend.report.lines import attention_lines
from coattend.report.matrix_figure import has_matrices, matrices_figure
from coattend.report.page import write_report
from coattend.report.style import save
from coattend.train import load_trained
from tests.runs import ATTENTIVE, PLAIN, SLICED, run_folder

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folders(trained_runs: Path) -> dict[str, Path]:
    return {model: run_folder(trained_runs, model) for model in (SLICED, ATTENTIVE, PLAIN)}


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    path = tmp_path / "digit.png"
    Image.fromarray(load_data("mini").test.images[0, 0].numpy()).save(path)
    return path


def test_every_layer_is_written_and_the_same_each_time(folders: dict[str, Path], digit: Path, tmp_path: Path) -> None:
    pictures = attend(str(folders[ATTENTIVE]), digit, tmp_path / "pictures")
    assert (pictures.network, pictures.changes, pictures.has_attention) == (ATTENTIVE, "", True)
    written = {path.name: path for path in (tmp_path / "pictures").iterdir()}
    assert set(pictures.files) == set(written.values())
    assert list(attention_lines(pictures, digit)) == [f"wrote {path}" for path in pictures.files]
    layers = [f"layer{k}" for k in range(1, 8)]
    assert set(written) == {f"{name}{suffix}" for name in (*layers, "matrices") for suffix in (".png", ".svg")}
    again = posed_views(load_trained(folders[ATTENTIVE] / "best.safetensors"), load_data("mini").test.images[0])
    for path in save(again.figure(2), tmp_path / "layer3"):
        assert path.read_bytes() == written[path.name].read_bytes()


@pytest.mark.parametrize("model", [SLICED, PLAIN])
def test_every_kind_of_network_is_drawn(folders: dict[str, Path], model: str) -> None:
    seen = posed_views(load_trained(folders[model]), load_data("mini").test.images[0])
    assert len(seen.views) == (7 if model == SLICED else 6)
    texts = " ".join(text.get_text() for text in seen.figure(1).texts)
    assert f"{model}: layer 2 of {len(seen.views)}" in texts
    assert ("This network has no attention" in texts) == (model == PLAIN)
    moved = "The rows are equal" if model == SLICED else "The rows are not equal"
    assert moved in texts.replace("\n", " ")


def test_pictures_of_steerable_filters_say_which_rows_are_interpolated() -> None:
    network = create_model("a_p4cnn:attention=output,group=C8,width=1,filters=steerable,head=max").float().eval()
    images = load_data("mini").test.images
    one = Classifier(network, make_preprocessing(["scalar"]).fit(images), tuple("0123456789"), (1, 28, 28))
    text = " ".join(text.get_text() for text in posed_views(one, images[0]).figure(1).texts).replace("\n", " ")
    assert "The rows of the 4 exact elements are equal, so they moved with the input" in text
    assert "The other rows are interpolated, and left out where they were outside of the frame" in text


def test_a_plain_network_and_an_odd_image_are_told(folders: dict[str, Path], tmp_path: Path) -> None:
    picture = tmp_path / "wide.png"
    Image.new("RGB", (60, 40), (200, 30, 90)).save(picture)
    lines = list(attention_lines(attend(str(folders[PLAIN]), picture, tmp_path / "pictures"), picture))
    changes = "colour is made grey; 60 x 40 pixels are scaled to 28 x 28, the longer side cut at both ends"
    assert lines[:3] == [
        f"{picture}: {changes}",
        f"{PLAIN} has no attention, so the pictures show its responses only",
        f"wrote {tmp_path / 'pictures' / 'layer1.png'}",
    ]


class Threshold(PoseAttention):
    """An attention without a matrix: responses above the mean of the poses pass."""

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        return (x > x.mean(2, keepdim=True)).to(x.dtype)


def test_masks_of_any_attention_are_drawn_and_matrices_where_there_are_some(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    network = create_model("a_p4cnn:attention=output,width=1").eval()
    for name, layer in list(network.named_modules()):
        if isinstance(layer, PoseAttention):
            network.set_submodule(name, Threshold(layer.channels, layer.group))
    images = load_data("mini").test.images
    one = Classifier(network, make_preprocessing(["scalar"]).fit(images), tuple("0123456789"), (1, 28, 28))
    posed = posed_views(one, images[0])
    assert len(posed.views) == 7
    assert {float(value) for view in posed.views for value in view.mask.unique()} == {0, 1}
    text = " ".join(text.get_text() for text in posed.figure(1).texts)
    assert "Mask: the factor by which" in text
    assert not has_matrices(network)
    with pytest.raises(ValueError, match="no attention with matrices"):
        matrices_figure(network)
    assert has_matrices(create_model("a_p4cnn:width=1"))


def test_mistakes_are_explained(folders: dict[str, Path], digit: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        attend("nowhere.safetensors", digit, tmp_path)
    with pytest.raises(ValueError, match=r"absent\.png"):
        attend(str(folders[PLAIN]), tmp_path / "absent.png", tmp_path)
    with pytest.raises(ValueError, match="is not a run folder"):
        attend(str(tmp_path), digit, tmp_path)
    with pytest.raises(ValueError, match="is a file; expected the name of a folder"):
        attend(str(folders[PLAIN]), digit, digit)
    with pytest.raises(ValueError, match="cannot write /proc/pictures"):
        attend(str(folders[PLAIN]), digit, Path("/proc/pictures"))


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
    figure = posed_views(one, images[0]).figure(0)
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
        attend(str(folders[ATTENTIVE]), digit, tmp_path / "pictures")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"run `pip install -e '\.\[plot\]'`"):
        write_report([folders[ATTENTIVE]], tmp_path / "report.html")
