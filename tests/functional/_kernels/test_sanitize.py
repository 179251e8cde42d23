"""The C++ kernels under the sanitizers of g++."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_sanitizers_find_no_error_in_the_kernels() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.sanitize"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 2:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
