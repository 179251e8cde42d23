"""Relative poses drop out during training; a run that is stopped in between continues as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import coattend as ca
from coattend.models import group_convolutions, restricted_poses
from coattend.train import RunFolder, train
from coattend.train.batches import Examples
from coattend.train.checkpoint import Checkpoint
from coattend.train.optimizer import make_optimizer
from coattend.train.restriction import drop_poses
from coattend.train.run_folder import WALL_CLOCK
from tests.train.conftest import tiny

MODEL = "a_p4cnn:width=2"
RECIPE = tiny(name="dropping", epochs=4, keep_poses=0.5, drop_poses_at=(0.25, 0.5), train_images=32)


class StopError(Exception):
    pass


def without_clocks(folder: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in epoch.to_dict().items() if k not in WALL_CLOCK} for epoch in folder.history()]


def test_poses_drop_out_and_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(MODEL, RECIPE, 0, tmp_path / "straight", accelerator="cpu")
    straight = RunFolder.of(tmp_path / "straight", MODEL, RECIPE, 0)
    assert [epoch.relative_poses for epoch in straight.history()] == [20, 15, 10, 10]
    assert result.valid_epoch >= 2
    network = ca.load_model(straight.best_weights)
    assert {len(poses) for poses in restricted_poses(network).values()} == {2}
    assert len(restricted_poses(network)) == 5
    assert result.parameters == sum(p.numel() for p in network.parameters())
    ca.assert_equivariant(network.double().eval(), torch.randn(2, 1, 28, 28, dtype=torch.float64), network.group)

    save = RunFolder.save_checkpoint
    stopped = RunFolder.of(tmp_path / "stopped", MODEL, RECIPE, 0)
    for epochs in (1, 2):  # before the first poses go, and while some are gone

        def stop(self: RunFolder, checkpoint: Checkpoint, last: int = epochs) -> None:
            if checkpoint.epoch == last:
                raise StopError
            save(self, checkpoint)

        with monkeypatch.context() as patched:
            patched.setattr(RunFolder, "save_checkpoint", stop)
            with pytest.raises(StopError):
                train(MODEL, RECIPE, 0, tmp_path / "stopped", accelerator="cpu")
    train(MODEL, RECIPE, 0, tmp_path / "stopped", accelerator="cpu")
    assert without_clocks(stopped) == without_clocks(straight)
    ours, theirs = load_file(stopped.last_weights), load_file(straight.last_weights)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_state_of_the_optimizer_is_restricted_with_the_weights(optimizer: str) -> None:
    network, recipe = ca.create_model("a_p4cnn:width=2"), tiny(optimizer=optimizer)
    before = make_optimizer(network, recipe)
    images, labels = torch.randn(8, 1, 28, 28), torch.arange(8)
    torch.nn.functional.cross_entropy(network(images), labels).backward()
    before.step()
    key = "exp_avg" if optimizer == "adamw" else "momentum_buffer"
    states = {name: before.state[p][key].clone() for name, p in network.named_parameters()}
    weights = {name: p.detach().clone() for name, p in network.named_parameters()}
    count = sum(len(group["params"]) for group in before.param_groups)

    smaller, after = drop_poses(network, before, recipe, Examples(images, labels), 2)
    for name, layer in group_convolutions(smaller).items():
        kept = list(layer.relative)
        weight, attention = layer.weight, layer.attention.weight
        assert torch.equal(after.state[weight][key], states[f"{name}.weight"][:, :, kept])
        vectors = states[f"{name}.attention.weight"].unflatten(0, (2, 4))[:, kept].flatten(0, 1)
        assert torch.equal(after.state[attention][key], vectors)
    head = "stages.0.layer1.conv.bias"
    assert torch.equal(after.state[smaller.get_parameter(head)][key], states[head])
    assert {id(p) for group in after.param_groups for p in group["params"]} == set(map(id, smaller.parameters()))
    assert sum(len(group["params"]) for group in after.param_groups) == len(after.state) == count

    # Neither the network nor its optimizer changed, and a step of the new one does not change them either.
    torch.nn.functional.cross_entropy(smaller(images), labels).backward()
    after.step()
    assert all(torch.equal(p, weights[name]) for name, p in network.named_parameters())
    assert all(torch.equal(before.state[p][key], states[name]) for name, p in network.named_parameters())


def test_fields_about_poses_are_checked() -> None:
    with pytest.raises(ValueError, match="keep_poses is a share of the relative poses, above 0 and up to 1, got 0"):
        tiny(keep_poses=0.0)
    with pytest.raises(ValueError, match=r"drop_poses_at are fractions of the epochs, from 0 to 1, got \(3,\)"):
        tiny(drop_poses_at=(3,))
