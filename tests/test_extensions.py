"""A form of attention, a network and a dataset that are defined here alone go the whole way, from name to certificate.

create_model, check, train, attend, export to ONNX with its certificate, and back: the exported file gives the answers
of the trained network, and the file of weights builds it again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import coattend as ca
from coattend.cli import main
from coattend.data import Dataset, Split
from coattend.data.catalog import DATASETS
from coattend.models import EquivariantNetwork
from coattend.models.blocks import Blocks, named
from coattend.models.classifier import load_trained
from coattend.models.registry import MODELS
from coattend.nn.attention import ATTENTIONS, PoseAttention
from coattend.train.run_folder import RunFolder

SHORT = ("epochs=1", "train_images=32", "valid_images=16", "test_images=16", "batch=16")


class StrongestPose(PoseAttention):
    """Pass poses by how near they are to the strongest, with one sharpness per channel."""

    def __init__(self, channels: int, group: ca.FiniteGroup | str) -> None:
        super().__init__(channels, group)
        self.sharpness = nn.Parameter(torch.ones(channels))

    def mask(self, x: Tensor) -> Tensor:
        return torch.exp(self.sharpness.square()[:, None, None, None] * (x - x.amax(2, keepdim=True)))


def two_layers(layers: Blocks, width: int = 4, num_classes: int = 10, in_channels: int = 1) -> EquivariantNetwork:
    """A network of two layers."""
    stage = named(
        first=layers.activate(layers.lift(in_channels, width, 5)),
        second=layers.activate(layers.conv(width, width, 3)),
    )
    head = named(conv=layers.conv(width, num_classes, 1), pool=layers.pool("max"))
    return EquivariantNetwork(
        layers.group,
        [stage],
        head,
        in_channels=in_channels,
        num_classes=num_classes,
        feature_channels=(width,),
        feature_reductions=(1,),
    )


def stripes(folder: Path) -> Dataset:
    """Wide and narrow stripes in colour, turned by any quarter."""

    def split(number: int, seed: int) -> Split:
        random = np.random.default_rng(seed)
        labels = np.arange(number) % 2
        wave = np.sin(np.arange(24) * np.where(labels == 0, 0.6, 1.6)[:, None])
        images = np.broadcast_to(127 + 100 * wave[:, None, :, None], (number, 24, 24, 3))
        turned = [np.rot90(image, turns) for image, turns in zip(images, random.integers(0, 4, number), strict=True)]
        noisy = np.stack(turned) + random.normal(0, 10, (number, 24, 24, 3))
        return Split(torch.tensor(noisy).clamp(0, 255).byte().permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))

    return Dataset("stripes", split(64, 0), split(16, 1), split(32, 2), ("wide", "narrow"), "drawn here")


@pytest.fixture
def extensions() -> Iterator[None]:
    ca.register_attention("strongest")(StrongestPose)
    ca.register_model("two_layers", dataset="mini", image_size=28, group="p4", recipe=("lr=0.02", "batch=8"))(
        two_layers
    )
    ca.register_dataset("stripes", classes=("wide", "narrow"), image_shape=(3, 24, 24))(stripes)
    yield
    ATTENTIONS.remove("strongest")
    MODELS.remove("two_layers")
    DATASETS.remove("stripes")


def coattend(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run the command line, which has to succeed."""
    monkeypatch.setattr(sys, "argv", ["coattend", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, arguments


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize(
    ("model", "data", "settings"),
    [
        ("p4cnn:width=2,attention=strongest", "mini", SHORT),
        ("two_layers", "mini", SHORT[:-1]),
        ("two_layers:attention=strongest,group=p4m", "stripes", SHORT),
    ],
    ids=("attention", "network", "dataset"),
)
def test_from_a_name_to_a_certificate_and_back(
    model: str,
    data: str,
    settings: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ort = pytest.importorskip("onnxruntime")
    torch.set_default_dtype(torch.float32)

    network = ca.create_model(model)
    image = torch.randn(2, network.in_channels, 28, 28, dtype=torch.float64)
    ca.assert_equivariant(network.double().eval(), image, network.group)
    coattend(monkeypatch, "check", model)

    words = [word for setting in settings for word in ("--set", setting)]
    coattend(monkeypatch, "train", model, "--data", data, "--folder", str(tmp_path), "--name", "run", *words)
    run = tmp_path / "run" / "seed0"
    if model == "two_layers":
        recipe = RunFolder(run).run.recipe
        assert (recipe.lr, recipe.batch) == (0.02, 8)

    trained = load_trained(run)
    channels, height, width = trained.image_shape
    pixels = torch.randint(0, 256, (4, channels, height, width), dtype=torch.uint8)
    picture = pixels[0].permute(1, 2, 0).numpy()
    Image.fromarray(picture if channels == 3 else picture[..., 0]).save(tmp_path / "image.png")
    coattend(monkeypatch, "attend", str(run), str(tmp_path / "image.png"), "--to", str(tmp_path / "attention"))
    assert len(list((tmp_path / "attention").glob("*.png"))) >= 1
    capsys.readouterr()
    coattend(monkeypatch, "predict", str(run), str(tmp_path / "image.png"))
    assert trained.predict(pixels[:1])[0].label in capsys.readouterr().out

    exported = tmp_path / "model.onnx"
    coattend(monkeypatch, "export", str(run), "--to", str(exported))
    coattend(monkeypatch, "check", str(exported))
    session = ort.InferenceSession(str(exported))
    (given,) = session.get_inputs()
    (answers,) = session.run(None, {given.name: pixels.float().numpy()})
    with torch.no_grad():
        expected = trained.eval()(pixels)
    np.testing.assert_allclose(answers, expected.numpy(), rtol=1e-4, atol=1e-4)

    again = ca.load_model(run / "last.safetensors")
    assert again.config == trained.network.config
    assert any(isinstance(m, StrongestPose) for m in again.modules()) == ("strongest" in model)
