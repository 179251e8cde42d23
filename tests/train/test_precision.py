"""Precisions: what "auto" chooses, what a run keeps, and what bfloat16 changes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import coattend as ca
from coattend.data import load_data, make_preprocessing
from coattend.groups.action import transform_map
from coattend.models.pretrained import pretrained_file
from coattend.train import RunError, RunFolder, changed, load_trained, precision, train
from coattend.train.checkpoint import Checkpoint
from coattend.train.comparison import compare_jobs
from coattend.train.evaluate import evaluate_classifier
from coattend.train.job import jobs_of
from coattend.train.recipe import Recipe
from coattend.train.row import IncomparableError
from coattend.train.run_folder import WALL_CLOCK
from tests.train.conftest import tiny

MODEL = "a_p4cnn:width=2,attention=output"
PRECISIONS = ("32-true", "64-true", "bf16-mixed")
SMALL = ["epochs=2", "train_images=32", "valid_images=32", "test_images=32", "batch=32", "equivariance_every=0"]
AUTO = changed(tiny(), [*SMALL, "precision=auto"])
ULP = 2**-8  # of bfloat16 below 1


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch):
    """A function that sets whether the device has instructions for bfloat16."""
    return lambda has: monkeypatch.setattr(precision, "has_bfloat16", lambda device: has)


@pytest.mark.parametrize(
    ("features", "vectors", "expected"),
    [
        ({"avx512_bf16": True}, "AVX512", True),
        ({"amx_bf16": True, "avx512_bf16": False}, "AVX512", True),
        ({"avx512_bf16": False, "avx512_f": True, "avx512_bw": True, "avx512_dq": True}, "AVX512", False),  # emulation
        ({"avx512_bf16": True}, "AVX2", False),  # ATEN_CPU_CAPABILITY=avx2
        ({"bf16": True}, "DEFAULT", True),  # ARM
        ({"bf16": False, "neon": True}, "DEFAULT", False),
        ({}, "AVX512", False),  # without oneDNN
    ],
)
def test_instructions_count_not_their_emulation(features: dict, vectors: str, expected: bool) -> None:
    assert precision.cpu_has_bfloat16(features, vectors) is expected


def test_features_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    if "flags" in flags:
        assert precision.cpu_features()["avx512_bf16"] == ("avx512_bf16" in flags.split())
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not precision.has_bfloat16("cpu")
    assert not precision.has_bfloat16("mps")
    assert precision.has_bfloat16("cuda") == (torch.cuda.is_available() and torch.cuda.is_bf16_supported())


def stopped_after(epoch: int, recipe: Recipe, root: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Train until the checkpoint of an epoch is written."""
    write = RunFolder.save_checkpoint

    def stop(self: RunFolder, checkpoint: Checkpoint) -> None:
        write(self, checkpoint)
        if checkpoint.epoch == epoch:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            train(MODEL, recipe, 0, root, accelerator="cpu")
    return RunFolder.of(root, MODEL, recipe, 0)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_stopped_run_ends_bit_identical(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = changed(tiny(), [*SMALL, f"precision={name}"])
    stopped = stopped_after(0, recipe, tmp_path / "stopped", monkeypatch)
    results = [train(MODEL, recipe, 0, tmp_path / root, accelerator="cpu") for root in ("stopped", "straight")]
    straight = RunFolder.of(tmp_path / "straight", MODEL, recipe, 0)
    ours, theirs = load_file(stopped.last_weights), load_file(straight.last_weights)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    histories = [
        [{k: v for k, v in epoch.to_dict().items() if k not in WALL_CLOCK} for epoch in folder.history()]
        for folder in (stopped, straight)
    ]
    assert histories[0] == histories[1]
    assert results[0].error == results[1].error
    # the network after the last epoch, tested again from its file, makes the same errors
    if name != "64-true":  # files are read as float32
        trained = evaluate_classifier(str(straight.best_weights), None)
        predicted = straight.predictions("valid")
        assert predicted is not None
        assert trained.precision == name
        assert trained.evaluation.predictions[:32].tolist() == predicted[1].tolist()


def test_different_precisions_are_different_runs(tmp_path: Path) -> None:
    weights, folders = [], set()
    for name in PRECISIONS:
        recipe = changed(tiny(), [*SMALL, f"precision={name}"])
        train(MODEL, recipe, 0, tmp_path, accelerator="cpu")
        folder = RunFolder.of(tmp_path, MODEL, recipe, 0)
        assert folder.run.recipe.precision == name
        weights.append(load_file(folder.last_weights))
        folders.add(folder.path)
    assert len(folders) == len(PRECISIONS)
    for one, other in itertools.combinations(weights, 2):
        assert not all(torch.equal(one[key].double(), other[key].double()) for key in one)


def test_auto_is_recorded_and_kept_whatever_the_machine_says_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_machine, capsys: pytest.CaptureFixture[str]
) -> None:
    on_machine(True)
    folder = stopped_after(0, AUTO, tmp_path, monkeypatch)
    assert "precision bf16-mixed" in capsys.readouterr().out
    on_machine(False)
    result = train(MODEL, AUTO, 0, tmp_path, accelerator="cpu")
    assert folder.run.recipe.precision == "bf16-mixed"
    assert "--set precision=bf16-mixed" in folder.record().command
    assert "precision=bf16-mixed" in result.settings
    assert train(MODEL, AUTO, 0, tmp_path, accelerator="cpu").was_finished
    # the command in the record is the same run, bit for bit
    explicit = changed(tiny(), [*SMALL, "precision=bf16-mixed"])
    train(MODEL, explicit, 0, tmp_path / "explicit", accelerator="cpu")
    theirs = load_file(RunFolder.of(tmp_path / "explicit", MODEL, explicit, 0).last_weights)
    ours = load_file(folder.last_weights)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    # another precision under the same name is refused
    train(MODEL, explicit, 0, tmp_path, name="mine", accelerator="cpu")
    with pytest.raises(RunError, match=r"recipe\.precision differ"):
        train(MODEL, changed(tiny(), SMALL), 0, tmp_path, name="mine", accelerator="cpu")
    on_machine(False)
    new = train(MODEL, AUTO, 1, tmp_path, accelerator="cpu")
    assert "precision=32-true" in new.settings
    with pytest.raises(IncomparableError, match="choose one precision for all seeds"):
        compare_jobs(jobs_of([MODEL], [0, 1], "quick", tmp_path, settings=AUTO.settings, accelerator="cpu"))


def test_16_bit_floats_are_refused_without_a_gpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("it has one")
    with pytest.raises(ValueError, match="needs a CUDA device; choose bf16-mixed"):
        train(MODEL, changed(tiny(), ["precision=16-mixed"]), 0, tmp_path)


def test_bfloat16_learns_as_float32_does(tmp_path: Path) -> None:
    """Master weights, norms and the loss are float32; after some epochs the accuracies are close."""
    accuracies = []
    for name in ("32-true", "bf16-mixed"):
        settings = [
            f"precision={name}",
            "train_images=512",
            "test_images=400",
            "epochs=6",
            "augmentation=none",
            "equivariance_every=0",
            "valid_images=1",
        ]
        recipe = changed(tiny(), settings)
        result = train("p4cnn:width=4", recipe, 0, tmp_path, accelerator="cpu")
        folder = RunFolder.of(tmp_path, "p4cnn:width=4", recipe, 0)
        history = folder.history()
        assert history[-1].train_loss < 0.5 * history[0].train_loss
        accuracies.append(100 - result.error.last)
        stored = load_file(folder.last_weights)
        assert {tensor.dtype for tensor in stored.values() if tensor.is_floating_point()} <= {
            torch.float32,
            torch.float64,
        }
        rounded = [torch.equal(w, w.bfloat16().to(w.dtype)) for key, w in stored.items() if key.endswith("weight")]
        assert not any(rounded)
    assert accuracies[0] == pytest.approx(accuracies[1], abs=4)
    assert min(accuracies) > 50


def test_a_network_turns_with_the_image_up_to_rounding_to_bfloat16() -> None:
    """Sums over taps have another order in another pose, so that single values are rounded to the next number."""
    trained = load_trained(pretrained_file("a_p4cnn:attention=output", "rotated-mnist"))
    x = trained.preprocessing(load_data("mini").test.images[:64])
    network = trained.network.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        error = max(ca.equivariance_error(network, x, "p4").values())
        masks = ca.attention_masks(network, x)
        for g in range(4):
            turned = ca.attention_masks(network, torch.rot90(x, g, (-2, -1)))
            for layer, mask in masks.items():
                difference = (transform_map(mask, network.group, g) - turned[layer]).abs()
                assert difference.max() <= 4 * ULP
                assert (difference > 0).double().mean() < 0.02
    assert error < 2e-3
    assert error > 1e-6  # else docs/training.md is to say that it is exact


def test_a_network_in_bfloat16_can_be_used() -> None:
    trained = load_trained(pretrained_file("p4cnn", "rotated-mnist"))
    images = load_data("mini").test.images[:100]
    labels = [p.label for p in trained.predict(images)]
    whole = load_trained(pretrained_file("p4cnn", "rotated-mnist")).to(torch.bfloat16)
    assert {p.dtype for p in whole.network.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in whole.preprocessing.buffers()} == {torch.float32}
    found = [p.label for p in whole.predict(images)]
    assert sum(a == b for a, b in zip(labels, found, strict=True)) >= 99
    with pytest.raises(ValueError, match=r"bfloat16.*float32|float32.*bfloat16"):
        whole.network(trained.preprocessing(images))


def test_preprocessing_follows_to_but_not_below_float32() -> None:
    images = load_data("mini").test.images[:50]
    preprocessing = make_preprocessing(["gcn", "zca"]).fit(images)
    expected = preprocessing.float()(images)
    assert torch.equal(preprocessing.to(torch.bfloat16)(images), expected)
    assert torch.equal(preprocessing.half()(images), expected)
    assert {b.dtype for b in preprocessing.double().buffers()} == {torch.float64}
