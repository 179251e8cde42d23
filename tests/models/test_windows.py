"""Large images in windows: the result of the whole image, wherever the windows can overlap far enough."""

# ruff: noqa: E501 (one mistake, one line)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coattend as ca
from coattend.data import make_preprocessing
from coattend.models.classifier import Classifier
from coattend.models.segmentation import segment_file
from coattend.models.windows import Locality, apply_in_windows, is_seamless, locality, windows
from coattend.nn.observe import estimate_norm_statistics

PIL_Image = pytest.importorskip("PIL.Image")


def settled(name: str) -> ca.models.EquivariantNetwork:
    model = ca.create_model(name)
    estimate_norm_statistics(model, [torch.randn(4, model.in_channels, 32, 32)])
    return model.eval()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("coat_unet:width=1,depth=1", Locality(2, 8)),
        ("coat_unet:width=1,depth=2,group=p4,attention=output", Locality(4, 22)),
        ("coat_unet:width=1,depth=3,group=C2,output=axis", Locality(8, 46)),
        ("coat_unet:width=1,depth=1,attention=gate", Locality(64, None)),
    ],
)
def test_how_far_results_depend_on_the_image(name: str, expected: Locality) -> None:
    assert locality(settled(name), 3) == expected


def test_locality_is_that_of_the_definition() -> None:
    """What is beyond an edge at a multiple of the period changes the results up to the reach, and no others."""
    model = settled("coat_unet:width=2,depth=1,in_channels=1,group=p4")
    where = locality(model, 1)
    image = torch.randn(8, 1, 48, 48)
    changed = image.clone()
    changed[..., 24:] += 100 * torch.randn(8, 1, 48, 24)
    moved = (model(changed) != model(image)).any(0).any(0).any(0).nonzero().flatten()
    assert 24 - int(moved.min()) == where.reach


@pytest.mark.parametrize("size", [(96, 160), (200, 96), (64, 64), (70, 131)])
@pytest.mark.parametrize("window", [64, 90])
def test_windows_give_the_result_of_the_whole_image(size: tuple[int, int], window: int) -> None:
    model = settled("coat_unet:width=2,depth=2,group=p4,attention=output")
    image = torch.randn(3, *size)
    result = apply_in_windows(model, image, window)
    assert result.shape == (2, *size)
    assert is_seamless(size, window, locality(model, 3))
    extended = [torch.arange(n + -n % 4) for n in size]
    index = [torch.minimum(i, 2 * n - 2 - i) for i, n in zip(extended, size, strict=True)]
    whole = model(image[:, index[0]][:, :, index[1]][None])[0, :, : size[0], : size[1]]
    torch.testing.assert_close(result, whole, rtol=1e-10, atol=1e-10)


def test_windows_that_overlap_less_or_begin_elsewhere_have_seams() -> None:
    model = settled("coat_unet:width=2,depth=2,group=p4")
    image = torch.randn(3, 96, 160)
    whole = model(image[None])[0]
    for wrong in (Locality(4, 10), Locality(1, 22)):
        try:
            difference = (apply_in_windows(model, image, 63 if wrong.period == 1 else 64, wrong) - whole).abs().max()
        except ValueError:  # windows at odd sizes are refused by the network
            continue
        assert difference > 1e-4


def test_networks_that_take_every_size_have_a_period_too() -> None:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(4, 2, 3, padding=1)]
    model = nn.Sequential(*layers, nn.Upsample(scale_factor=4), nn.Conv2d(2, 1, 3, padding=1))
    where = locality(model, 1)
    assert where.period == 4
    image = torch.randn(1, 40, 100)
    torch.testing.assert_close(apply_in_windows(model, image, 32), model(image[None])[0], rtol=1e-10, atol=1e-10)


class Blur(nn.Module):
    """A mean over the whole image added to a local result; not local."""

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.conv, self.amount = nn.Conv2d(1, 1, 1), amount

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.amount * x.mean((-2, -1), keepdim=True)


def test_results_of_the_whole_image_are_blended_smoothly() -> None:
    model = Blur(1.0)
    assert locality(model, 1).reach is None
    ramp = torch.linspace(0, 1, 256).expand(1, 64, 256)
    result = apply_in_windows(model, ramp, 64)
    steps = (result[0, 32, 2:-2] - model(ramp[None])[0, 0, 32, 2:-2]).diff().abs()
    assert steps.max() < 0.25 / 16 * 1.5  # neighbouring windows differ by less than a quarter; 16 pixels blend them


@pytest.mark.parametrize("length", [8, 64, 100, 1000])
@pytest.mark.parametrize("where", [Locality(4, 22), Locality(4, None), Locality(1, 0)])
def test_weights_are_a_partition_that_leaves_borders_out(length: int, where: Locality) -> None:
    parts = windows(length, 64, where)
    torch.testing.assert_close(parts.weights.sum(0), torch.ones(length))
    assert (parts.weights >= 0).all()
    for start, weights in zip(parts.starts, parts.weights, strict=True):
        assert start % where.period == 0
        used = weights.nonzero().flatten()
        reach = where.reach or 0
        assert used.min() >= start + (reach if start else 0)
        assert used.max() < start + parts.length - (reach if start + parts.length < length else 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: apply_in_windows(m, torch.zeros(1, 3, 8, 8)), r"image \(channels, height, width\), got \(1, 3, 8, 8\)"),
        (lambda m: apply_in_windows(m, torch.zeros(3, 8, 8), window=0), "window must be a whole number of pixels"),
        (lambda m: apply_in_windows(settled("p4cnn:width=2"), torch.zeros(1, 28, 28), 28, Locality(1, 1)), "one result per pixel"),
    ],
)  # fmt: skip
def test_wrong_calls(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(ca.create_model("coat_unet:width=1,depth=1"))


def saved(folder: Path, **options: object) -> tuple[Path, Classifier]:
    torch.set_default_dtype(torch.float32)
    network = settled(f"coat_unet:width=2,depth=1,group=p4{options.pop('more', '')}")
    classes = tuple("abc"[: network.num_classes])
    preprocessing = make_preprocessing(["per-channel"])
    preprocessing.fit(torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8))
    classifier = Classifier(network, preprocessing, classes, (3, 32, 32)).eval()
    classifier.save(folder / "net.safetensors")
    return folder / "net.safetensors", classifier


def test_a_mask_is_a_picture_of_class_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    from coattend.cli import main

    file, classifier = saved(tmp_path)
    pixels = torch.randint(256, (3, 75, 101), dtype=torch.uint8)
    PIL_Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "slide.png")
    arguments = [
        "segment",
        str(file),
        str(tmp_path / "slide.png"),
        "--to",
        str(tmp_path / "mask.png"),
        "--window",
        "48",
    ]
    monkeypatch.setattr("sys.argv", ["coattend", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "75 x 101; equal to the whole image at once" in printed
    mask = np.asarray(PIL_Image.open(tmp_path / "mask.png"))
    assert mask.shape == (75, 101)
    with torch.no_grad():
        inside = classifier(pixels[None, :, :60, :80])[0].argmax(0).numpy()
    assert (mask[:48, :68] == inside[:48, :68]).mean() > 0.999
    assert f"a: {(mask == 0).mean():.1%} of the pixels" in printed


def test_steps_that_see_the_whole_image_come_before_the_windows(tmp_path: Path) -> None:
    _, classifier = saved(tmp_path)
    classifier.preprocessing = make_preprocessing(["per-image-channel"])
    pixels = torch.randint(256, (96, 128, 3), dtype=torch.uint8)
    PIL_Image.fromarray(pixels.numpy()).save(tmp_path / "slide.png")
    segmented = segment_file(classifier, tmp_path / "slide.png", tmp_path / "logits.npy", window=48)
    assert segmented.seamless
    with torch.no_grad():
        expected = classifier(pixels.permute(2, 0, 1)[None])[0].numpy()
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), expected, atol=1e-4)


def test_fields_are_arrays(tmp_path: Path) -> None:
    _, classifier = saved(tmp_path, more=",output=axis,num_classes=1")
    pixels = torch.randint(256, (40, 48, 3), dtype=torch.uint8)
    PIL_Image.fromarray(pixels.numpy()).save(tmp_path / "slide.png")
    with pytest.raises(ValueError, match=r"segment writes \.npy for this network, got 'mask\.png'"):
        segment_file(classifier, tmp_path / "slide.png", tmp_path / "mask.png")
    segmented = segment_file(classifier, tmp_path / "slide.png", tmp_path / "field.npy")
    field = np.load(tmp_path / "field.npy")
    assert field.shape == (2, 40, 48)
    assert segmented.shares is None
    with torch.no_grad():
        np.testing.assert_allclose(field, classifier(pixels.permute(2, 0, 1)[None])[0].numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="exists already"):
        segment_file(classifier, tmp_path / "slide.png", tmp_path / "field.npy")
