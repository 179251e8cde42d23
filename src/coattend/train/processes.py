"""Training by several processes: they start together, fail together and leave their group before they exit."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor

from coattend.models.records import MachineError, RunError
from coattend.train.recipe import Recipe

T = TypeVar("T")


def launched_fabric(recipe: Recipe, accelerator: str, devices: int, nodes: int) -> Fabric:
    """Return a launched Fabric; numbers of processes come from ``torchrun`` if it started this one, or from SLURM."""
    check_placement(accelerator, devices, nodes)
    assert recipe.precision != "auto"  # train has resolved it
    if "LOCAL_WORLD_SIZE" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    if recipe.precision == "16-mixed" and not torch.cuda.is_available():
        raise ValueError(
            "precision=16-mixed needs a CUDA device; choose bf16-mixed, which trains on CPUs too, or auto."
        )
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision=recipe.precision,
    )
    fabric.launch()
    # Fabric leaves a gloo group to C++'s static destructors, which abort the process while the group's threads run.
    atexit.unregister(leave_group)
    atexit.register(leave_group)
    return fabric


def check_placement(accelerator: str, devices: int, nodes: int) -> None:
    """Raise unless the devices are available here; Fabric's own errors do not say what to do."""
    available = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator not in available:
        raise ValueError(f"accelerator must be one of {', '.join(available)}, got {accelerator!r}.")
    if not available[accelerator]:
        usable = ", ".join(name for name, usable in available.items() if usable)
        raise ValueError(f"this machine has no {accelerator} device that torch can use; choose one of {usable}.")
    for name, number in (("devices", devices), ("nodes", nodes)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {number!r}.")
    if accelerator == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(
            f"devices must be at most {torch.cuda.device_count()}, the GPUs of this machine, got {devices}."
        )


def leave_group() -> None:
    """Destroy the process group, if there is one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def is_first() -> bool:
    """Whether this is the process that prints and writes: the only one, or the first of several."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def together(fabric: Fabric, work: Callable[[], T]) -> T:
    """Do the same work in every process; if it fails in one, all raise, so that none waits for another."""
    if fabric.world_size == 1:
        return work()
    failure: Exception | None = None
    try:
        value = work()
    except Exception as error:  # noqa: BLE001 (raised again below)
        failure = error
    failures: list[Exception | None] = [None] * fabric.world_size
    shared = failure if failure is None or isinstance(failure, RunError) else RunError(str(failure) or repr(failure))
    torch.distributed.all_gather_object(failures, shared)
    if failure is not None:
        raise failure
    for rank, other in enumerate(failures):
        if other is not None:
            raise other if rank == 0 else RunError(f"process {rank} of {fabric.world_size} failed: {other}")
    return value


def by_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """Do work in the first process only; all return its result, or raise its error."""
    value = together(fabric, lambda: work() if fabric.is_global_zero else None)
    return cast(T, fabric.broadcast(value))


def total(fabric: Fabric, value: Tensor) -> float:
    """Sum a number over all processes."""
    summed = fabric.all_reduce(value.detach().clone(), reduce_op="sum")
    assert isinstance(summed, Tensor)
    return summed.item()


@contextmanager
def lost_processes_named() -> Iterator[None]:
    """Turn the error of a collective whose peer has ended into one that says so."""
    try:
        yield
    except RuntimeError as error:
        gone = isinstance(error, torch.distributed.DistError) or re.search("by peer|Broken pipe", str(error))
        if not gone:
            raise
        raise MachineError(
            f"another process of this training ended ({str(error).splitlines()[0]}); start the same command again to "
            "continue from the last whole epoch."
        ) from error
