"""Memory and time of an image that is segmented in windows, and its difference to the whole image at once.

    python -m benchmarks.window_memory

A new coat_unet with norms as after training, random pixels. The image is segmented in a process of its own, whose
resident memory (Linux) is that of Python, torch, the image, the result and one window. The difference is measured on a
smaller image, which fits into memory as a whole, over all pixels and inside a frame of one reach.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import torch
import tyro

import coattend as ca
from coattend.models import apply_in_windows, locality
from coattend.nn.observe import estimate_norm_statistics, evaluating


def network(model: str) -> ca.models.EquivariantNetwork:
    """Return a network with weights of a fixed seed and norms with statistics."""
    torch.manual_seed(0)
    made = ca.create_model(model)
    estimate_norm_statistics(made, [torch.randn(2, made.in_channels, 128, 128)])
    return made.eval()


def segment(model: str, size: int, window: int, threads: int) -> tuple[float, float, float]:
    """Return seconds, resident memory before and at most, in megabytes, of one image in windows."""
    torch.set_num_threads(threads)
    made = network(model)
    image = torch.randn(made.in_channels, size, size)
    before = _resident()
    start = time.perf_counter()
    apply_in_windows(made, image, window)
    return time.perf_counter() - start, before, _resident()


def _resident() -> float:
    """Return the largest resident memory of this process so far; getrusage would count that of its parent as well."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def main(model: str = "coat_unet", size: int = 4096, smaller: int = 1024, window: int = 512, threads: int = 1) -> None:
    """Measure and print.

    Args:
        model: A network with one result per pixel.
        size: Height and width of the image whose memory is measured.
        smaller: Height and width of the image that is also segmented as a whole.
        window: Height and width of the windows.
        threads: Threads of torch.
    """
    torch.set_num_threads(threads)
    made = network(model)
    where = locality(made, made.in_channels)
    print(f"{model}: {sum(p.numel() for p in made.parameters()):,} parameters, {where}", flush=True)
    image = torch.randn(made.in_channels, smaller, smaller)
    with evaluating(made):
        whole = made(image[None])[0]
    difference = (apply_in_windows(made, image, window, where) - whole).abs()
    edge = where.reach or 0
    inner = difference[:, edge : smaller - edge, edge : smaller - edge]
    print(
        f"{smaller} x {smaller}: largest difference to the whole image {difference.max().item():.1e}, in the interior "
        f"{inner.max().item():.1e}; results up to {whole.abs().max().item():.1f}",
        flush=True,
    )
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        seconds, before, most = pool.apply(segment, (model, size, window, threads))
    print(f"{size} x {size}: {seconds:.0f} s, resident memory {before:.0f} MB before, {most:.0f} MB at most")


if __name__ == "__main__":
    tyro.cli(main)
