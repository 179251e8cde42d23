from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the suite runs in two processes
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # shells start background jobs so, and their children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _exact_and_repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Build the kernels before any test, so that no test sees the announcement."""
    from coattend.functional import build_kernels

    build_kernels()


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs that :mod:`tests.runs` describes; not to be written into."""
    pytest.importorskip("lightning_fabric")
    from tests.runs import trained_once

    return trained_once(tmp_path_factory)
