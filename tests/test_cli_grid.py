"""The verbs that train grids, with the arguments that say where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import Verb, coattend, started

__all__ = ["coattend"]  # the fixture

SMALL = [w for s in ("epochs=1", "train_images=64", "test_images=40", "equivariance_every=0") for w in ("--set", s)]


def test_grid_shows_the_states_of_its_runs(coattend: Verb, tmp_path: Path) -> None:
    arguments = ("z2cnn:width=1", "--folder", str(tmp_path), *SMALL)
    trained = coattend("train", *arguments)
    assert trained.returncode == 0, trained.stderr
    lines = coattend("grid", *arguments, "--seeds", "0,1").stdout.splitlines()
    lines = [line.strip() for line in lines]
    (done,) = (line for line in lines if line.startswith("z2cnn:width=1 seed 0"))
    (queued,) = (line for line in lines if line.startswith("z2cnn:width=1 seed 1"))
    assert done.split()[3:5] == ["done", "1/1"]
    assert done.endswith("%")
    assert queued.split()[3:] == ["queued"]
    assert "1 queued, 0 running, 1 done, 0 failed" in lines


def test_grid_prints_the_script_of_a_slurm_array(coattend: Verb, tmp_path: Path) -> None:
    arguments = ("p4cnn", "z2cnn", "--seeds", "3,4", "--folder", str(tmp_path), "--cpus", "2", *SMALL)
    script = coattend("grid", *arguments, "--slurm").stdout
    assert script.startswith("#!/usr/bin/env bash\n#SBATCH --job-name=coattend\n#SBATCH --array=0-3\n")
    assert "export OMP_NUM_THREADS=2\n" in script
    assert script.count(" coattend train ") == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--address", "auto"), "--address is that of a Ray cluster; add --on ray."),
        (("--workers", "0"), "workers must be a whole number of at least 1, got 0."),
        (("--workers", "2", "--on", "ray"), "leave out --workers."),
        (("--workers", "2", "--retries", "-1"), "retries must be at least 0, got -1."),
    ],
)
def test_places_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], message: str, coattend: Verb, tmp_path: Path
) -> None:
    ended = coattend("compare", "z2cnn", "--folder", str(tmp_path), *arguments)
    assert ended.returncode == 2
    assert ended.stderr.rstrip().endswith(message)


def test_without_ray_the_message_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('absent', name='ray')")
    ended = started(tmp_path, "compare", "z2cnn", "--on", "ray", "--folder", str(tmp_path / "runs"))
    assert ended.returncode == 2
    assert "this needs ray, which is not installed; run `pip install -e '.[cluster]'`" in ended.stderr


def test_nothing_but_the_cluster_imports_ray() -> None:
    code = "import sys, coattend.grid, coattend.grid.remote, coattend.report.grid_table; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.slow
def test_a_failed_run_ends_with_exit_code_1_and_its_reason(coattend: Verb, tmp_path: Path) -> None:
    words = [*SMALL, "--set", "explode=0.001", "--workers", "1", "--folder", str(tmp_path)]
    ended = coattend("compare", "z2cnn", *words)
    assert ended.returncode == 1
    assert ended.stderr.startswith("coattend: 1 of 1 runs failed:\n  z2cnn seed 0: training diverged: the loss is ")
    assert "z2cnn seed 0: failed (training diverged" in ended.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COATTEND_DATA", str(tmp_path / "no data"))
        ended = coattend("reproduce", "z2cnn", *words)
    assert ended.returncode == 1
    assert "coattend data fetch rotated-mnist" in ended.stderr
    assert (tmp_path / "ledger" / "results.md").is_file()  # of what is finished
