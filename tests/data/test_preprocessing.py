"""Preprocessing against slow computations with numpy's SVD and plain loops."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import load_data, make_preprocessing, preprocessing_steps
from coattend.data import preprocessing as module

NAMES = ["scalar", "per-channel", "per-pixel", "per-image-channel", "gcn", "gcn55", "zca", "zca0.1", "clip99"]


def images(count: int = 300, channels: int = 3, side: int = 6, seed: int = 0) -> torch.Tensor:
    """Smooth random colour images: neighbours and channels are correlated, as in photographs."""
    drawn = np.random.RandomState(seed)
    x = drawn.randn(count, channels, side, side).cumsum(2).cumsum(3) + drawn.randn(count, 1, 1, 1) * 5
    return torch.from_numpy(np.clip(128 + 12 * x, 0, 255).astype(np.uint8))


def rows(x: torch.Tensor) -> np.ndarray:
    return x.numpy().reshape(len(x), -1).astype(np.float64) / 255


def close(ours: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert ours.dtype == torch.float32
    error = np.abs(ours.numpy().reshape(len(expected), -1) - expected)
    assert error.max() <= tolerance * max(1, np.abs(expected).max())


def gcn(x: np.ndarray) -> np.ndarray:
    out = []
    for row in x:
        row = row - row.mean()
        std = row.std(ddof=1)
        out.append(row / (std if std > 1e-8 else 1))
    return np.array(out)


def test_standardisation_with_training_statistics() -> None:
    train, test = images(), images(50, seed=1)
    x, y = rows(train), rows(test)
    close(make_preprocessing(["scalar"]).fit(train)(test), (y - x.mean()) / x.std())
    close(make_preprocessing(["per-pixel"]).fit(train)(test), (y - x.mean(0)) / x.std(0))
    by_channel = x.reshape(300, 3, -1)
    mean, std = by_channel.mean((0, 2))[:, None], by_channel.std((0, 2))[:, None]
    expected = ((y.reshape(50, 3, -1) - mean) / std).reshape(50, -1)
    close(make_preprocessing(["per-channel"]).fit(train)(test), expected)


def test_a_pixel_that_never_varies_does_no_harm() -> None:
    train, test = images(), images(20, seed=1)
    train[:, :, 0, 0] = 179  # not exact in binary when divided by 255
    test[:, :, 0, 0] = 255
    out = make_preprocessing(["per-pixel"]).fit(train)(test)
    assert out.isfinite().all()
    assert torch.allclose(out[:, :, 0, 0], torch.tensor((255 - 179) / 255, dtype=torch.float32))
    constant = torch.full((4, 3, 6, 6), 7, dtype=torch.uint8)
    for name in NAMES:
        assert make_preprocessing([name]).fit(constant)(constant).isfinite().all(), name


def test_contrast_normalisation_agrees_with_numpy() -> None:
    x = images()
    x[3] = 99
    close(make_preprocessing(["gcn"])(x), gcn(rows(x)))
    centred = rows(x) - rows(x).mean(1, keepdims=True)
    norm = np.linalg.norm(centred, axis=1, keepdims=True)
    close(make_preprocessing(["gcn55"])(x), 55 * centred / np.where(norm > 1e-8, norm, 55))
    channels = rows(x).reshape(300, 3, 36)
    channels = channels - channels.mean(2, keepdims=True)
    std = channels.std(2, keepdims=True)
    expected = (channels / np.where(std > 1e-8, std, 1)).reshape(300, -1)
    close(make_preprocessing(["per-image-channel"])(x), expected)


def test_whitening_agrees_with_numpy_svd() -> None:
    train, test = images(), images(50, seed=1)
    for before in ([], ["scalar"]):
        pre = make_preprocessing(before).fit(train)
        x, y = (pre(part).double().numpy().reshape(len(part), -1) for part in (train, test))
        mean = x.mean(0)
        u, s, _ = np.linalg.svd((x - mean).T / np.sqrt(len(x) - 1), full_matrices=False)
        close(make_preprocessing([*before, "zca"]).fit(train)(test), (y - mean) @ (u / (s + 1e-5)) @ u.T)
        u, s, _ = np.linalg.svd((x - mean).T / np.sqrt(len(x)), full_matrices=False)
        expected = (y - mean) @ (u / np.sqrt(s**2 + 0.1)) @ u.T
        close(make_preprocessing([*before, "zca0.1"]).fit(train)(test), expected)


def test_contrast_normalisation_and_whitening_together_agree_with_numpy_svd() -> None:
    """Normalised images have no mean, so one singular value is 0: what is divided by it must stay nothing."""
    train, test = images(), images(50, seed=1)
    x, y = gcn(rows(train)), gcn(rows(test))
    u, s, _ = np.linalg.svd((x - x.mean(0)).T / np.sqrt(len(x) - 1), full_matrices=False)
    expected = (y - x.mean(0)) @ (u / (s + 1e-5)) @ u.T
    close(make_preprocessing(["gcn", "zca"]).fit(train)(test), expected)


def test_whitened_training_images_are_white() -> None:
    train = images(2000, channels=1, side=5)
    white = make_preprocessing(["zca"]).fit(train)(train).double().flatten(1)
    assert torch.allclose(white.T.cov(), torch.eye(25), atol=1e-2)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    train = images()
    whole = {name: make_preprocessing([name], clip=2).fit(train)(train) for name in NAMES}
    monkeypatch.setattr(module, "CHUNK", 37)
    monkeypatch.setattr(preprocessing_steps, "BLOCK", 40)
    for name, expected in whole.items():
        assert torch.allclose(make_preprocessing([name], clip=2).fit(train)(train), expected, atol=1e-5), name


@pytest.mark.parametrize("name", NAMES)
def test_each_step_says_rightly_whether_it_commutes(name: str) -> None:
    x = load_data("mini").valid.images[:, :, 8:20, 8:20]
    step = make_preprocessing([name]).fit(x)
    y = step(x)
    errors = [(step(x.rot90(k, (-2, -1))) - y.rot90(k, (-2, -1))).abs().max() for k in (1, 2, 3)]
    errors.append((step(x.flip(-1)) - y.flip(-1)).abs().max())
    if step.commutes_with_rotation:
        assert max(errors) <= 1e-5
    else:
        assert min(errors) > 0.1
    assert step.commutes_with_rotation == (name not in ("per-pixel", "zca", "zca0.1"))
    assert make_preprocessing(["scalar", name], clip=1).commutes_with_rotation == step.commutes_with_rotation


def test_clipping() -> None:
    x = images()
    out = make_preprocessing(["per-image-channel"], clip=1.5)(x)
    assert out.abs().max() == 1.5
    free = make_preprocessing(["per-image-channel"])(x)
    bound = np.percentile(free.numpy(), 99, method="lower")
    fitted = make_preprocessing(["per-image-channel", "clip99"]).fit(x)
    assert torch.allclose(fitted(x), free.clamp(-bound, bound))
    assert abs(float(fitted.steps[1].bound) - bound) < 1e-6


@pytest.mark.parametrize(
    "steps", [["scalar"], ["per-pixel"], ["gcn", "zca"], ["gcn55", "zca0.1", "clip99"], ["gcn"], []]
)
def test_a_state_dict_is_loaded_bit_for_bit(steps: list[str]) -> None:
    train, test = images(), images(30, seed=1)
    fitted = make_preprocessing(steps, clip=3).fit(train)
    for again in (make_preprocessing(steps, clip=3), make_preprocessing(steps, clip=3).fit(images(40, seed=2))):
        again.load_state_dict(fitted.state_dict())
        assert torch.equal(again(test), fitted(test))
        assert {buffer.dtype for buffer in again.buffers()} == {torch.float64}
    single = make_preprocessing(steps, clip=3).fit(images(40, seed=2)).float()
    single.load_state_dict(fitted.state_dict())
    assert {buffer.dtype for buffer in single.buffers()} == {torch.float32}


@pytest.mark.parametrize(("name", "axes"), [("scalar", (0, 1, 2, 3)), ("per-channel", (0, 2, 3)), ("per-pixel", (0,))])
def test_standardization_has_the_bits_of_numpy(name: str, axes: tuple[int, ...]) -> None:
    train, test = images(), images(50, seed=1)
    chain = make_preprocessing([name], clip=1.5).fit(train)
    step = chain.steps[0]
    assert isinstance(step, preprocessing_steps.Standardize)
    x, mean, std = test.numpy() / 255.0, step.mean.numpy(), step.std.numpy()
    assert mean.shape == tuple(1 if axis in axes else n for axis, n in enumerate(train.shape))
    expected = np.clip((x - mean) / std, -1.5, 1.5).astype(np.float32)
    assert np.array_equal(chain(test).numpy(), expected)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # raised within torch.onnx
def test_torch_export_and_onnx_take_pixels(tmp_path: Path) -> None:
    """Every kind of step in one chain, for any number of images."""
    onnxruntime = pytest.importorskip("onnxruntime")
    train, test = images(), images(5, seed=1)
    chain = make_preprocessing(["per-channel", "gcn55", "per-image-channel", "zca0.1", "clip99"], clip=2).fit(train)
    shapes = {"pixels": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(chain, (test[:3],), dynamic_shapes=shapes)
    assert torch.equal(program.module()(test), chain(test))
    path = tmp_path / "chain.onnx"
    torch.onnx.export(program, (), path, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"pixels": test.numpy()})
    assert out.dtype == np.float32
    assert np.abs(out - chain(test).numpy()).max() <= 1e-6


def test_the_module_can_be_moved_copied_and_differentiated() -> None:
    train, test = images(), images(5, seed=1)
    chain = make_preprocessing(["gcn", "zca0.1"]).fit(train)
    assert torch.equal(pickle.loads(pickle.dumps(copy.deepcopy(chain)))(test), chain(test))
    single = copy.deepcopy(chain).float()
    assert single(test).dtype == torch.float32
    assert torch.allclose(single(test), chain(test), atol=1e-4)
    assert not torch.equal(single(test), chain(test))  # it computes in float32
    pixels = test.float().requires_grad_()
    chain(pixels).sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().max() > 0
    assert not any(True for _ in chain.parameters())


def test_floating_point_images_from_0_to_255_are_the_same_as_bytes() -> None:
    x = images()
    step = make_preprocessing(["scalar"]).fit(x)
    assert torch.equal(step(x), step(x.float()))
    assert step(x[:0]).shape == (0, 3, 6, 6)


def test_wrong_use_is_told() -> None:
    with pytest.raises(ValueError, match="Preprocessing is not fitted; call fit"):
        make_preprocessing(["scalar"])(images())
    with pytest.raises(ValueError, match=r"unknown preprocessing step 'scaler' \(did you mean scalar\?\)"):
        make_preprocessing(["scaler"])
    for name in ("zca0", "clip101", "gcn0.0"):
        with pytest.raises(ValueError, match="expects a positive number"):
            make_preprocessing([name])
    with pytest.raises(ValueError, match="unknown preprocessing step 'scalar3'"):
        make_preprocessing(["scalar3"])
    with pytest.raises(ValueError, match="clip to be a positive number or None, got 'x'"):
        make_preprocessing(["scalar"], clip="x")
    with pytest.raises(ValueError, match="from 0 to 255, got NoneType"):
        make_preprocessing(["scalar"]).fit(None)
    with pytest.raises(ValueError, match="put them in a list"):
        make_preprocessing("gcn")
    with pytest.raises(ValueError, match="expects clip to be a positive number"):
        make_preprocessing([], clip=0)
    with pytest.raises(ValueError, match="at least one training image"):
        make_preprocessing([]).fit(images()[:0])
    for wrong in (images()[0], images().long()):
        with pytest.raises(ValueError, match="expects images"):
            make_preprocessing([])(wrong)
    for name in ("zca", "per-pixel"):
        with pytest.raises(ValueError, match=r"fitted on images \(3, 6, 6\), got \(3, 7, 7\)"):
            make_preprocessing([name]).fit(images())(images(side=7))
    whitened = make_preprocessing(["zca"]).fit(images()).state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*steps.0.std.*\n.*Unexpected key.*steps.0.matrix"):
        make_preprocessing(["scalar"]).load_state_dict(whitened)
