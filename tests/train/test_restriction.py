"""A trained network becomes a smaller one, with its table and its picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import coattend as ca
from coattend import cli
from coattend.export import check_certificate
from coattend.models import group_convolutions, restricted_poses
from coattend.nn.observe import multiply_adds
from coattend.report import contribution_figure
from coattend.report.console import restriction_table
from coattend.report.style import save
from coattend.train import Recipe, load_trained
from coattend.train.batches import Examples
from coattend.train.restriction import fine_tune, restrict_trained
from tests.runs import SLICED, run_folder


@pytest.fixture
def sliced(trained_runs: Path) -> Path:
    return run_folder(trained_runs, SLICED)


def test_a_run_becomes_a_smaller_network(sliced: Path, tmp_path: Path) -> None:
    to = tmp_path / "half.safetensors"
    found = restrict_trained(sliced, to, keep=2, epochs=1, images=16, train_images=128, test_images=60)
    small = load_trained(to)
    assert restricted_poses(small.network) == found.after
    assert {len(poses) for poses in found.after.values()} == {2}
    before, cut, tuned = found.stages
    assert [stage.name for stage in found.stages] == ["before", "restricted", "fine-tuned"]
    assert before.time == 1
    assert tuned.parameters == sum(p.numel() for p in small.network.parameters()) < before.parameters
    assert cut.multiply_adds == tuned.multiply_adds == sum(multiply_adds(small.network, (1, 28, 28)).values())
    assert 0.45 < tuned.multiply_adds / before.multiply_adds < 0.6
    assert set(tuned.equivariance) == set(range(4))
    assert max(tuned.equivariance.values()) < 1e-12

    checked = check_certificate(to)
    assert checked is not None
    assert checked.agrees

    console = Console(width=150)
    with console.capture() as captured:
        console.print(restriction_table(found))
    text = captured.get()
    for word in ("layer4", "test error %", "multiply-adds", "equivariance, turn 90°", "half.safetensors"):
        assert word in text

    files = save(contribution_figure({"one": found, "another": found}), tmp_path / "picture")
    assert [file.suffix for file in files] == [".png", ".svg"]
    assert all(file.stat().st_size > 10_000 for file in files)

    again = restrict_trained(to, tmp_path / "less.safetensors", budget=0.7, epochs=0, images=8, test_images=40)
    assert 0.5 < again.stages[-1].multiply_adds / tuned.multiply_adds <= 0.7
    assert all(set(again.after[name]) <= set(found.after[name]) for name in again.after)
    assert again.stages[1].error == again.stages[2].error  # no fine-tuning


def test_the_verb_prints_the_table_and_draws(sliced: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    to, picture, data = tmp_path / "one.safetensors", tmp_path / "one.png", tmp_path / "few.npz"
    digits = ca.data.load_data("mini").test
    np.savez(data, images=digits.images[:100].numpy(), labels=digits.labels[:100].numpy())
    assert cli.networks.restrict(str(sliced), keep=1, data=str(data), to=to, epochs=0, images=4, picture=picture) == 0
    assert "Before and after" in capsys.readouterr().out
    assert restricted_poses(load_trained(to).network)
    assert picture.is_file()


def test_targets_and_data_are_checked_before_the_work(sliced: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.safetensors"
    there.write_bytes(b"")
    with pytest.raises(ValueError, match="exists already"):
        restrict_trained(sliced, there, keep=2)
    with pytest.raises(ValueError, match="either keep, how many relative poses"):
        restrict_trained(sliced, tmp_path / "a.safetensors", images=4, test_images=4)
    with pytest.raises(ValueError, match="keep must be from 1 to 4"):
        restrict_trained(sliced, tmp_path / "a.safetensors", keep=9, images=4, test_images=4)


def test_fine_tuning_is_repeatable_and_lowers_the_loss() -> None:
    images, labels = torch.randn(32, 1, 28, 28), torch.arange(32) % 10
    recipe = Recipe("short", lr=0.02, batch=16)
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        network = ca.create_model("p4cnn:width=4,relative=0-1")
        start = torch.nn.functional.cross_entropy(network(images), labels).item()
        fine_tune(network, recipe, Examples(images, labels), epochs=8)
        assert not network.training
        assert len(group_convolutions(network)) == 5
        losses.append(torch.nn.functional.cross_entropy(network.train()(images), labels).item())
    assert losses[0] == losses[1] < start
