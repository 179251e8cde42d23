"""The recorded arithmetic of a run that is continued with another one, and the exit codes of errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coattend.data import load_data
from coattend.models.records import MachineError, RunError
from coattend.train import RunFolder, train
from coattend.train.run_folder import InUseError, arithmetic
from tests.train.conftest import tiny

MODEL, CPU = "z2cnn:width=1", torch.device("cpu")


def described(folder: RunFolder) -> str:
    folder.describe(MODEL, tiny(), 0, load_data("mini"), 1, CPU)
    assert folder.run.arithmetic is not None
    return folder.run.arithmetic


def test_a_run_that_continues_with_other_threads_records_both(tmp_path: Path) -> None:
    train(MODEL, tiny(), 0, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, tiny(), 0)
    here = arithmetic(CPU)
    assert described(folder) == here
    other = here.replace(f"{torch.get_num_threads()} threads", "64 threads")
    folder.write("run.json", replace(folder.run, arithmetic=other).to_dict())
    assert described(folder) == here  # nothing of it was computed: there is no checkpoint
    folder.write("run.json", replace(folder.run, arithmetic=other).to_dict())
    folder.checkpoint.touch()
    assert described(folder) == f"{other}; then {here}"
    assert described(folder) == f"{other}; then {here}"  # once


def test_a_run_without_recorded_arithmetic_stays_without(tmp_path: Path) -> None:
    train(MODEL, tiny(), 0, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, tiny(), 0)
    folder.write("run.json", replace(folder.run, arithmetic=None).to_dict())
    folder.checkpoint.touch()
    folder.describe(MODEL, tiny(), 0, load_data("mini"), 1, CPU)
    assert folder.run.arithmetic is None


@pytest.mark.parametrize(("error", "code"), [(RunError, 2), (MachineError, 74), (InUseError, 75)])
def test_errors_end_a_command_with_their_exit_code(
    error: type[RunError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coattend import cli

    def fail(**_: object) -> None:
        raise error("why")

    monkeypatch.setattr("coattend.cli.app.cli", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == "coattend: why\n"
