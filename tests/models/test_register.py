"""A network that is defined here alone goes everywhere that a network of the paper goes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

import coattend as ca
from coattend.models import Blocks, EquivariantNetwork, named, network_name
from coattend.models.registry import MODELS
from coattend.report.check import check_network
from coattend.report.console import models_table


def tiny(
    layers: Blocks, width: int = 3, num_classes: int = 4, in_channels: int = 2, doubled: bool = False
) -> EquivariantNetwork:
    wide = 2 * width if doubled else width
    stage = named(first=layers.lift(in_channels, width, 3), second=layers.activate(layers.conv(width, wide, 3)))
    head = named(conv=layers.project(wide, num_classes, 1), pool=layers.pool(None))
    return EquivariantNetwork(
        layers.group,
        [stage],
        head,
        in_channels=in_channels,
        num_classes=num_classes,
        feature_channels=(wide,),
        feature_reductions=(1,),
    )


@pytest.fixture
def registered() -> Iterator[None]:
    ca.register_model(dataset="mini", image_size=12, group="p4m", attention="output", recipe=["epochs=3"])(tiny)
    ca.register_model("tiny_slices", title="Tiny", dataset="mini", image_size=12, group="p4", attention="slice")(tiny)
    yield
    MODELS.remove("tiny")
    MODELS.remove("tiny_slices")


@pytest.mark.usefixtures("registered")
def test_the_entry_tells_what_was_registered_and_the_paper_is_silent() -> None:
    assert ca.list_models("tiny*") == ["tiny", "tiny_slices"]
    assert ca.list_models()[-2:] == ["tiny", "tiny_slices"]
    entry = ca.model_entry("tiny:width=2")
    assert (entry.name, entry.title, entry.dataset, entry.group) == ("tiny", "tiny", "mini", "p4m")
    assert (entry.image_size, entry.in_channels, entry.num_classes, entry.recipe) == (12, 2, 4, ("epochs=3",))
    assert entry.published is entry.error is entry.own_error is entry.spread is entry.published_count is None
    assert ca.model_entry("tiny_slices").title == "Tiny"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(models_table("tiny"))
    row = next(line for line in console.export_text().splitlines() if "tiny" in line)
    assert row.split() == ["tiny", "p4m", "810", "-", "-"]


@pytest.mark.usefixtures("registered")
def test_it_is_built_checked_saved_and_rebuilt(tmp_path: Path) -> None:
    model = ca.create_model("tiny_slices:doubled=true", width=2)
    assert [type(m) for m in model.modules()].count(ca.nn.SliceCoAttentiveConv2d) == 1
    assert network_name(model) == "tiny_slices:doubled=true,width=2"
    x = torch.randn(2, 2, 12, 12)
    ca.assert_equivariant(model, x, model.group)
    assert ca.is_exact(model, 12)
    assert check_network("tiny").holds
    ca.save_model(model, tmp_path / "tiny.safetensors")
    again = ca.load_model(tmp_path / "tiny.safetensors")
    assert again.config == model.config
    assert torch.equal(again.eval()(x), model.eval()(x))
    backbone = ca.create_model("tiny", features_only=True)
    assert backbone(x)[0].shape == (2, 3, 8, 8, 8)
    with pytest.raises(ValueError, match=r"no weights of tiny trained on mini come with the package"):
        ca.create_model("tiny", pretrained=True)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny:widht=2", r"tiny has no option 'widht' \(did you mean width\?\); its options are group, width"),
        ("tiny:downsample=pool", "tiny has no strided convolution that downsample=pool could replace"),
        ("tinny", r"unknown model 'tinny' \(did you mean tiny"),
    ],
)
def test_mistakes_in_its_options_are_answered(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.create_model(name)


def test_the_network_of_the_documentation_works() -> None:
    page = Path(__file__).parents[2] / "docs" / "models.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    try:
        for block in blocks[:2]:
            exec(block, scope)
        model = scope["model"]
        assert isinstance(model, EquivariantNetwork)
        assert network_name(model) == "small_net:group=C8,width=4"
        assert model(torch.randn(1, 1, 28, 28)).shape == (1, 10)
        assert ca.model_entry("small_net_p4").defaults["width"] == 12
    finally:
        for name in ca.list_models("small_net*"):
            MODELS.remove(name)


def test_a_file_of_a_network_that_is_not_registered_says_so(tmp_path: Path) -> None:
    ca.register_model("passing", dataset="mini", image_size=12, group="p4")(tiny)
    ca.save_model(ca.create_model("passing"), tmp_path / "m.safetensors")
    MODELS.remove("passing")
    with pytest.raises(ValueError, match=r"not registered: unknown model 'passing'.*Import the module"):
        ca.load_model(tmp_path / "m.safetensors")


def without_classes(layers: Blocks, in_channels: int = 3) -> EquivariantNetwork:
    raise NotImplementedError


def without_defaults(layers: Blocks, width: int, num_classes: int = 3, in_channels: int = 3) -> EquivariantNetwork:
    raise NotImplementedError


def with_an_option_of_blocks(layers: Blocks, norm: bool = False, num_classes: int = 3, in_channels: int = 3) -> None:
    raise NotImplementedError


@pytest.mark.parametrize("builder", [without_classes, without_defaults, with_an_option_of_blocks])
def test_builders_that_cannot_be_called_are_refused(builder: object) -> None:
    with pytest.raises(ValueError, match=r"register_model expects a function \(layers, num_classes=.*got with"):
        ca.register_model(dataset="mini", image_size=12, group="p4")(builder)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("p4cnn", {}, "there is a model 'p4cnn' already; choose another name"),
        ("mine:width=2", {}, "a model's name consists of letters"),
        ("mine", {"widht": 2}, r"mine has no option 'widht' \(did you mean width"),
    ],
)
def test_registrations_that_could_not_be_used_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.register_model(name, dataset="mini", image_size=12, group="p4", **options)(tiny)
    assert name == "p4cnn" or name not in ca.list_models()


def test_a_builder_must_return_a_network() -> None:
    def plain(layers: Blocks, num_classes: int = 3, in_channels: int = 3) -> torch.nn.Module:
        return torch.nn.Sequential(layers.lift(in_channels, num_classes, 3))

    ca.register_model("plain", dataset="mini", image_size=12, group="p4")(plain)
    try:
        with pytest.raises(ValueError, match=r"plain must return a coattend.models.EquivariantNetwork, got Sequential"):
            ca.create_model("plain")
    finally:
        MODELS.remove("plain")


def test_options_that_a_user_s_network_does_not_get_are_refused() -> None:
    assert ca.create_model("tests.own_networks:segmenter:width=2", num_classes=3).num_classes == 3
    with pytest.raises(ValueError, match=r"tests.own_networks:segmenter does not get the option group, .* symmetry"):
        ca.create_model("tests.own_networks:segmenter:group=p4m")
    with pytest.raises(ValueError, match="does not get the options attention, filters"):
        ca.create_model("tests.own_networks:segmenter:attention=gate", filters="steerable")
