"""The processes that measure."""

from __future__ import annotations

import pytest
import torch

from coattend._timing import saved_bytes
from coattend.bench import prepare_process, process, random_batch, without_dropout


def test_all_candidates_run_with_the_same_memory_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: calls.append("memory"))
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    prepare_process()
    assert calls == [2, "memory"]


@pytest.mark.slow
def test_peak_resident_size_holds_what_a_training_step_keeps() -> None:
    torch.set_default_dtype(torch.float32)
    batch = 64
    bytes_ = saved_bytes(without_dropout("p4cnn"), random_batch(batch, 28)[0])
    assert bytes_ < process.peak_resident("p4cnn", batch, 28) < 20 * bytes_
