"""The precision of a training: chosen for the device, recorded in the run, and used again where the run continues."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch
from lightning_fabric import Fabric

from coattend.models.records import RunError
from coattend.train.processes import together
from coattend.train.recipe import Recipe, changed
from coattend.train.run_folder import RunFolder

ARM_FEATURES = ("bf16", "sve_bf16")
X86_FEATURES = ("avx512_bf16", "amx_bf16")


def resolved(recipe: Recipe, folder: RunFolder, accelerator: str) -> Recipe:
    """Return a recipe whose precision is not "auto" any more, and is among its settings.

    A run that has begun keeps its precision on every device. A new one gets ``bf16-mixed`` where the device has
    instructions for bfloat16, and ``32-true`` elsewhere.
    """
    if recipe.precision != "auto":
        return recipe
    begun = (folder.path / "run.json").is_file()
    fast = not begun and has_bfloat16(device_type(accelerator))
    precision = folder.run.recipe.precision if begun else "bf16-mixed" if fast else "32-true"
    return changed(recipe, [f"precision={precision}"])


def check_one_precision(fabric: Fabric, recipe: Recipe) -> None:
    """Raise unless all processes have resolved the precision alike."""
    first = fabric.broadcast(recipe.precision)

    def check() -> None:
        if recipe.precision != first:
            raise RunError(
                f"the first process trains in {first}, process {fabric.global_rank} in {recipe.precision}; choose one "
                f"for all machines, for example with --set precision={first}."
            )

    together(fabric, check)


def device_type(accelerator: str) -> str:
    """Return the device that Fabric takes: of "auto" the first of mps, cuda and cpu that is available."""
    if accelerator != "auto":
        return accelerator
    return "mps" if torch.backends.mps.is_available() else "cuda" if torch.cuda.is_available() else "cpu"


def has_bfloat16(device: str) -> bool:
    """Whether a device multiplies in bfloat16 by instructions of its own instead of emulating them in float32."""
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and cpu_has_bfloat16(cpu_features(), torch.backends.cpu.get_cpu_capability())


def cpu_features() -> Mapping[str, Any]:
    """Return the processor's features by name, as torch reads them; empty without oneDNN, which needs them."""
    if not torch.backends.mkldnn.is_available():
        return {}
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    if platform.machine() in ("aarch64", "arm64"):  # there this function asks for the instructions
        return {"bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported()}
    return {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()}


def cpu_has_bfloat16(features: Mapping[str, Any], vectors: str) -> bool:
    """Whether these features include arithmetic in bfloat16, and torch uses vectors wide enough for it.

    ``torch.ops.mkldnn._is_mkldnn_bf16_supported`` does not answer this on x86: there it is true wherever oneDNN can
    emulate bfloat16 with AVX-512.
    """
    if any(features.get(name, False) for name in X86_FEATURES):
        return vectors.startswith("AVX512")  # ATEN_CPU_CAPABILITY may have limited it
    return any(features.get(name, False) for name in ARM_FEATURES)
