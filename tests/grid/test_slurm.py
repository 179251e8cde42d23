"""The script for SLURM, as text and run by bash: a task for each run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coattend.grid import slurm_script
from coattend.train.job import jobs_of
from tests.grid.conftest import assert_bit_identical, small_jobs


def task(script: Path, number: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a task of the array as SLURM would; `scontrol` writes down what it is asked for."""
    tools = script.parent / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "coattend").write_text(f'#!/bin/sh\nexec {sys.executable} -m coattend "$@"\n')
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {script.parent}/scontrol\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    given = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "71", **variables}
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **given}
    return subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=False)


def test_every_run_is_a_task_with_its_command(tmp_path: Path) -> None:
    jobs = jobs_of(("p4cnn", "a_p4cnn:attention=output"), (0, 1, 2), "paper", tmp_path / "my runs")
    text = slurm_script(jobs, cpus=4, gpus=0, retries=3)
    lines = text.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert {"#SBATCH --array=0-5", "#SBATCH --cpus-per-task=4", "#SBATCH --requeue"} <= set(lines)
    assert "export OMP_NUM_THREADS=4" in lines
    assert "gpus" not in text
    assert "srun" not in text
    (last,) = (line for line in lines if line.startswith("  5) "))
    assert "coattend train a_p4cnn:attention=output --data rotated-mnist --recipe paper --seed 2" in last
    assert f"--folder '{tmp_path}/my runs'" in last
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_runs_of_several_processes_are_started_by_srun(tmp_path: Path) -> None:
    jobs = jobs_of(("p4m_resnet44",), (0,), "paper", tmp_path, accelerator="cuda", devices=4, nodes=2)
    text = slurm_script(jobs, cpus=8, gpus=1, retries=0)
    for option in ("nodes=2", "ntasks-per-node=4", "cpus-per-task=8", "gpus-per-node=4", "array=0-0"):
        assert f"#SBATCH --{option}\n" in text
    assert "  0) srun coattend train p4m_resnet44 " in text
    assert "--accelerator cuda --devices 4 --nodes 2 ;;" in text
    with pytest.raises(ValueError, match="a SLURM array needs at least one run"):
        slurm_script([], 1, 0, 3)


@pytest.mark.slow
def test_tasks_train_their_runs_and_killed_ones_are_queued_again(tmp_path: Path) -> None:
    good, bad = small_jobs(tmp_path / "array", 1, ("z2cnn:width=1",)) + small_jobs(
        tmp_path / "array", 1, ("z2cnn:width=2",), (0,), "explode=0.01"
    )
    script = tmp_path / "job.sh"
    script.write_text(slurm_script([good, bad], cpus=1, gpus=0, retries=2))
    trained = task(script, 0)
    assert trained.returncode == 0, trained.stderr
    (straight,) = small_jobs(tmp_path / "turn", 1, ("z2cnn:width=1",))
    straight.train()
    assert_bit_identical(straight.folder, good.folder)
    assert task(script, 9).returncode == 2

    diverged = task(script, 1)
    assert diverged.returncode == 2
    assert "training diverged" in diverged.stderr
    assert not (tmp_path / "scontrol").exists()

    killed = script.with_name("killed.sh")
    killed.write_text(script.read_text().replace("coattend train", "sh -c 'kill -9 $$' train"))
    assert task(killed, 0, SLURM_RESTART_COUNT="1").returncode == 137
    assert (tmp_path / "scontrol").read_text() == "requeue 71_0\n"
    assert task(killed, 0, SLURM_RESTART_COUNT="2").returncode == 137
    assert (tmp_path / "scontrol").read_text() == "requeue 71_0\n"  # often enough
