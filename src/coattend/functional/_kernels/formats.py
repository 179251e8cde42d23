"""Which memory format of maps is the faster one on this machine: measured once, when the kernels are built."""

from __future__ import annotations

import hashlib
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from coattend._files import cache_dir, write_atomically
from coattend.functional._kernels.build import logger

ROUNDS = 5


def channels_last_is_faster() -> bool:
    """Return what was measured; False if nothing was."""
    path = _path()
    return path.is_file() and path.read_text().startswith("channels_last")


def measure_formats() -> None:
    """Measure a convolution of a usual size in both formats, forward and backward, unless that was done before."""
    path = _path()
    if path.is_file():
        return
    ratio = _time_ratio()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{'channels_last' if ratio < 1 else 'planes'} {ratio:.2f}\n".encode())
    except OSError as reason:
        logger.info("coattend: the faster memory format could not be saved (%s)", reason)


def _path() -> Path:
    key = "\0".join((torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.machine(), _processor()))
    return cache_dir() / "formats" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.txt"


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    if not cpus.is_file():
        return platform.processor()
    names = [line for line in cpus.read_text().splitlines() if line.startswith(("model name", "CPU part"))]
    return names[0] if names else platform.processor()


def _time_ratio() -> float:
    """Return the time of channels-last relative to planes, the median over interleaved rounds."""
    seconds: dict[torch.memory_format, list[float]] = {torch.contiguous_format: [], torch.channels_last: []}
    x, weight = torch.zeros(16, 40, 26, 26, dtype=torch.float32), torch.zeros(40, 40, 3, 3, dtype=torch.float32)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for _ in range(ROUNDS + 1):
            for format_, times in seconds.items():
                image, filters = (t.contiguous(memory_format=format_).requires_grad_() for t in (x, weight))
                start = time.perf_counter()
                y = F.conv2d(image, filters)
                y.backward(torch.ones_like(y))
                times.append(time.perf_counter() - start)
    planes, rows = (times[1:] for times in seconds.values())  # the first round builds what the library caches
    return statistics.median(b / a for a, b in zip(planes, rows, strict=True))
