"""A checkpoint that is damaged or foreign is refused with one message; none is loaded with a changed bit."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from coattend.train import RunError, RunFolder, train
from coattend.train.checkpoint import Checkpoint, checkpoint_bytes
from coattend.train.history import Best
from tests.train.conftest import tiny

MODEL = "p4cnn:width=1"
DAMAGED = r"checkpoint\.pt is damaged; move it away to start from the first epoch\.$"
STATE: dict[str, Any] = {
    "model": {"weight": torch.ones(40)}, "optimizer": {}, "epoch": 0, "metrics_bytes": 5,
    "best": {"epoch": 0, "accuracy": 0.5, "loss": 1.0}, "relative": {},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.metrics.write_bytes(b"0123456789")
    folder.checkpoint.write_bytes(checkpoint_bytes(STATE))
    return folder


def test_a_whole_checkpoint_comes_back_and_cuts_the_metrics(folder: RunFolder) -> None:
    state = folder.load_checkpoint()
    assert state is not None
    assert torch.equal(state.model["weight"], STATE["model"]["weight"])
    assert (state.optimizer, state.epoch, state.metrics_bytes, state.relative) == ({}, 0, 5, {})
    assert state.best == Best(0, 0.5, 1.0)
    folder.save_checkpoint(state)
    again = folder.load_checkpoint()
    assert again is not None
    assert again.best == state.best
    assert folder.metrics.read_bytes() == b"01234"


def test_truncations_are_found(folder: RunFolder) -> None:
    whole = folder.checkpoint.read_bytes()
    for length in range(0, len(whole), 41):
        folder.checkpoint.write_bytes(whole[:length])
        with pytest.raises(RunError, match=DAMAGED):
            folder.load_checkpoint()
    assert folder.metrics.read_bytes() == b"0123456789"


def test_every_flipped_bit_is_found(folder: RunFolder) -> None:
    whole, chance = folder.checkpoint.read_bytes(), random.Random(0)
    for bit in chance.sample(range(8 * len(whole)), 200):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        folder.checkpoint.write_bytes(flipped)
        with pytest.raises(RunError, match=DAMAGED):
            folder.load_checkpoint()


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_a_pickle_with_code_gets_our_message(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({**STATE, "best": Hostile()}, folder.checkpoint)
    with pytest.raises(RunError, match=DAMAGED):
        folder.load_checkpoint()
    folder.checkpoint.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(RunError, match=DAMAGED):
        folder.load_checkpoint()
    assert "executed" not in capsys.readouterr().out


ALLOWED = (("best", None), ("optimizer", {"a": "b"}), ("relative", {"a": "b"}))
OTHERS = [(field, value) for field in STATE for value in (None, "x", -1, [], {"a": "b"})]


@pytest.mark.parametrize(("field", "value"), [case for case in OTHERS if case not in ALLOWED])
def test_fields_of_another_kind_are_found(folder: RunFolder, field: str, value: Any) -> None:
    folder.checkpoint.write_bytes(checkpoint_bytes({**STATE, field: value}))
    with pytest.raises(RunError, match=DAMAGED):
        folder.load_checkpoint()


def test_a_checkpoint_does_not_lengthen_the_metrics(folder: RunFolder) -> None:
    folder.checkpoint.write_bytes(checkpoint_bytes({**STATE, "metrics_bytes": 2**31}))
    with pytest.raises(RunError, match=r"metrics.jsonl is shorter than when checkpoint.pt was written; move"):
        folder.load_checkpoint()
    assert folder.metrics.stat().st_size == 10


def test_the_target_of_a_link_is_not_cut(folder: RunFolder) -> None:
    precious = folder.path / "precious"
    folder.metrics.rename(precious)
    folder.metrics.symlink_to(precious)
    folder.load_checkpoint()
    assert precious.read_bytes() == b"0123456789"
    assert folder.metrics.read_bytes() == b"01234"


class StopError(Exception):
    pass


def test_runs_go_on_from_old_checkpoints_and_refuse_those_of_other_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(epochs=2, train_images=32, valid_images=10, test_images=10)
    straight = train(MODEL, recipe, 0, tmp_path / "straight")
    save = RunFolder.save_checkpoint

    def stop(self: RunFolder, checkpoint: Checkpoint) -> None:
        save(self, checkpoint)
        content = self.checkpoint.read_bytes()
        self.checkpoint.write_bytes(content.partition(b"\n")[2])  # as versions without a digest wrote it
        raise StopError

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", stop)
        with pytest.raises(StopError):
            train(MODEL, recipe, 0, tmp_path / "stopped")
    folder = RunFolder.of(tmp_path / "stopped", MODEL, recipe, 0)
    kept = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(checkpoint_bytes({**STATE, "metrics_bytes": folder.metrics.stat().st_size}))
    with pytest.raises(RunError, match=DAMAGED):
        train(MODEL, recipe, 0, tmp_path / "stopped")
    folder.checkpoint.write_bytes(kept)
    assert train(MODEL, recipe, 0, tmp_path / "stopped").error == straight.error
