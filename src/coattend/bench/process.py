"""The processes that measure: threads, memory, and the largest resident size."""

from __future__ import annotations

import subprocess
import sys

import torch

from coattend.functional import build_kernels
from coattend.functional.layout import Format
from coattend.train.memory import keep_freed_memory


def prepare_process(threads: int = 2) -> None:
    """Set the seed, the number of threads and the memory of this process for all measurements alike, build the kernels.

    Kernels are built before anything is measured: which memory format ``"auto"`` stands for is known from then on.

    Freed memory is kept, as ``coattend train`` does; otherwise new pages of the system are a part of every figure that
    depends on the sizes of blocks and not on the networks.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    keep_freed_memory()
    build_kernels()


def peak_resident(model: str, batch: int, size: int, format: Format = "auto") -> int:  # noqa: A002 (torch's name)
    """Return the largest resident size in bytes of a new process that trains a network, minus that of importing."""
    program = (
        "import pathlib, re, torch\n"
        "from coattend._timing import training_step\n"
        "from coattend.bench import prepare_process, random_batch, without_dropout\n"
        "from coattend.functional import memory_format\n"
        # Not getrusage: its maximum is inherited from the parent process.
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        f"prepare_process({torch.get_num_threads()})\n"
        "before = peak()\n"
        f"step = training_step(without_dropout({model!r}), *random_batch({batch}, {size}))\n"
        f"with memory_format({format!r}):\n"
        "    for _ in range(3): step()\n"
        "print(1024 * (peak() - before))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(finished.stdout)
