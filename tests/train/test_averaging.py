"""Averaged weights, and the recipe strong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coattend.data import load_data
from coattend.models import EquivariantNetwork
from coattend.nn.observe import estimate_norm_statistics
from coattend.train import RunError, RunFolder, changed, get_recipe, load_trained, train
from coattend.train.averaging import AveragedWeights
from coattend.train.batches import prepare
from coattend.train.checkpoint import Checkpoint
from tests.train.conftest import tiny

MODEL = "p4cnn:width=2"
SETTINGS = [
    "averaging=0.7",
    "epochs=3",
    "train_images=64",
    "valid_images=32",
    "test_images=32",
    "batch=32",
    "equivariance_every=0",
]
RECIPE = changed(tiny(), [*SETTINGS, "train_on=train+valid"])


def test_the_saved_weights_are_the_mean_by_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[dict[str, torch.Tensor]] = []
    update = AveragedWeights.update

    def record(self: AveragedWeights, network: EquivariantNetwork) -> None:
        steps.append({name: p.detach().double().clone() for name, p in network.named_parameters()})
        update(self, network)

    monkeypatch.setattr(AveragedWeights, "update", record)
    train(MODEL, RECIPE, 0, tmp_path, accelerator="cpu")
    assert len(steps) == 3 * 2
    expected = steps[0]
    for step in steps[1:]:
        expected = {name: 0.7 * expected[name] + 0.3 * step[name] for name in step}
    folder = RunFolder.of(tmp_path, MODEL, RECIPE, 0)
    trained = load_trained(folder.path)
    for name, parameter in trained.network.named_parameters():
        assert torch.allclose(parameter.double(), expected[name], rtol=1e-5, atol=1e-7)
    assert any((expected[name] - steps[-1][name]).abs().max() > 1e-4 for name in expected)  # not the last weights
    # norm statistics are those of the averaged network on the training images
    before = {name: b.clone() for name, b in trained.network.named_buffers() if "running" in name}
    images = prepare(load_data("mini"), RECIPE, torch.device("cpu")).train.images
    estimate_norm_statistics(trained.network, images.split(32))
    for name, buffer in trained.network.named_buffers():
        if name in before:
            assert torch.equal(buffer, before[name])


@pytest.mark.parametrize("part", ["train", "train+valid"])
def test_a_stopped_run_continues_the_average(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = changed(tiny(), [*SETTINGS, f"train_on={part}"])
    straight = train(MODEL, recipe, 0, tmp_path / "straight", accelerator="cpu")
    write = RunFolder.save_checkpoint
    for last in (0, 2):  # in the middle, and when only the final test is missing

        def stop(self: RunFolder, checkpoint: Checkpoint, last: int = last) -> None:
            write(self, checkpoint)
            if checkpoint.epoch == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(RunFolder, "save_checkpoint", stop)
            with pytest.raises(KeyboardInterrupt):
                train(MODEL, recipe, 0, tmp_path / "stopped", accelerator="cpu")
    assert train(MODEL, recipe, 0, tmp_path / "stopped", accelerator="cpu").error == straight.error
    files = [RunFolder.of(tmp_path / root, MODEL, recipe, 0).last_weights for root in ("straight", "stopped")]
    ours, theirs = map(load_file, files)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_damaged_average_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RunFolder.save_checkpoint

    def damage(self: RunFolder, checkpoint: Checkpoint) -> None:
        assert checkpoint.average is not None
        average = {key: value for key, value in checkpoint.average.items() if key != "n_averaged"}
        write(self, Checkpoint(checkpoint.model, checkpoint.optimizer, 0, None, {}, checkpoint.metrics_bytes, average))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", damage)
        with pytest.raises(KeyboardInterrupt):
            train(MODEL, RECIPE, 0, tmp_path, accelerator="cpu")
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged"):
        train(MODEL, RECIPE, 0, tmp_path, accelerator="cpu")


def test_strong_takes_all_images_and_looks_at_the_test_images_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = get_recipe("strong", MODEL)
    assert (recipe.data, recipe.train_on, recipe.schedule) == ("rotated-mnist", "train+valid", "one-cycle")
    assert (recipe.test_every, recipe.precision, recipe.averaging) == (0, "auto", 0)
    assert recipe.augmentation == ("elastic=1.5", "rotate")
    looks: list[int] = []
    monkeypatch.setattr(
        "coattend.train.training.examine",
        _counted(looks, __import__("coattend.train.evaluate", fromlist=["x"]).examine),
    )
    small = changed(get_recipe("strong", MODEL, "mini"), ["epochs=2", "test_images=40", "train_images=2100"])
    result = train(MODEL, small, 0, tmp_path, accelerator="cpu")
    assert looks == [40]
    assert (result.protocol, result.error.test_optimistic) == ("last", None)
    bent = changed(small, ["augmentation=elastic=2.5,rotate", "lr=0.004", "weight_decay=0.03", "averaging=0.99"])
    assert bent.augmentation == ("elastic=2.5", "rotate")


def _counted(looks: list[int], evaluate):
    def counted(fabric, model, examples, *rest):
        looks.append(len(examples))
        return evaluate(fabric, model, examples, *rest)

    return counted
