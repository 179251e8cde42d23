"""How and where networks are trained: the arguments that the verbs which train share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from coattend.cli.program import Data, Fit, Folder, Name, Pixels, Settings, shown


@dataclass(frozen=True)
class Training:
    """How and where networks are trained.

    Args:
        data: A dataset's name, an image folder with one sub-folder per class or with images and masks, a table (.csv,
            .parquet) or an .npz; by default the recipe's.
        recipe: quick, house, strong, dense or paper; by default quick on mini, dense on nuclei-mini, house elsewhere.
        size: Pixels a side of all images; by default their own, or a common size if they differ.
        fit: resize scales the shorter side to size and cuts the longer one at both ends; crop cuts out the centre.
        settings: Change a field of the recipe; may be repeated. `coattend recipes` lists the fields.
        folder: The folder of the run folders.
        accelerator: cpu, cuda, mps or auto.
        devices: Processes on this machine.
        nodes: Machines.
    """

    data: Data = None
    recipe: Name = None
    size: Pixels = None
    fit: Annotated[Fit | None, shown("{resize,crop}")] = None
    settings: Settings = ()
    folder: Folder = Path("runs")
    accelerator: Annotated[str, shown("NAME")] = "auto"
    devices: int = 1
    nodes: int = 1

    @property
    def recipe_name(self) -> str:
        """The recipe, by default the one for the data."""
        if self.recipe is not None:
            return self.recipe
        return {None: "quick", "mini": "quick", "nuclei-mini": "dense"}.get(self.data, "house")

    @property
    def all_settings(self) -> tuple[str, ...]:
        """The settings with size and fit among them, so that the run records these too."""
        given = {"size": self.size, "fit": self.fit}
        return (*(f"{field}={value}" for field, value in given.items() if value is not None), *self.settings)


TrainingArguments = Annotated[Training, tyro.conf.arg(name="")]
DEFAULT = Training()


def keep_memory(accelerator: str) -> None:
    """Let this process keep the memory that it frees, which makes training on CPUs faster."""
    import torch

    from coattend.train.memory import keep_freed_memory

    on_gpu = accelerator == "auto" and (torch.cuda.is_available() or torch.backends.mps.is_available())
    if accelerator in ("auto", "cpu") and not on_gpu:
        keep_freed_memory()


def parsed_seeds(text: str) -> list[int]:
    """Return the seeds that the command line names."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds expects whole numbers separated by commas, got {text!r}.") from None
