"""Jobs: the independent, resumable runs of a grid of networks and seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from coattend._terminal import say
from coattend.data.catalog import DATASETS
from coattend.models import create_model, model_entry
from coattend.nn.observe import multiply_adds
from coattend.train.loop import check_seed, train
from coattend.train.precision import resolved
from coattend.train.processes import is_first
from coattend.train.recipe import Recipe, changed
from coattend.train.recipes import get_recipe
from coattend.train.run import Result, absolute_path, is_named
from coattend.train.run_folder import InUseError, RunFolder

WAIT = 5.0  # seconds between attempts at runs that other processes train


@dataclass(frozen=True)
class Job:
    """One run of a grid: its folder, and the call or the command that trains it or continues it."""

    model: str
    recipe: Recipe
    seed: int
    root: Path
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1

    @property
    def name(self) -> str:
        """Network and seed, for messages."""
        return f"{self.model} seed {self.seed}"

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder.of(self.root, self.model, self.recipe, self.seed)

    def train(self) -> Result:
        """Train the run, or continue it, in this process."""
        return train(
            self.model,
            self.recipe,
            self.seed,
            self.root,
            accelerator=self.accelerator,
            devices=self.devices,
            nodes=self.nodes,
        )

    def arguments(self) -> list[str]:
        """Return the words after ``coattend`` that train the run, or continue it, in another process."""
        recipe = self.recipe
        if changed(get_recipe(recipe.name, self.model, recipe.data), recipe.settings) != recipe:
            raise ValueError(
                f"a run in a process of its own takes a recipe by its name and settings, but {recipe.full_name} has "
                "other values; use get_recipe and changed."
            )
        words = ["train", self.model, "--data", recipe.data, "--recipe", recipe.name, "--seed", str(self.seed)]
        words += [word for setting in recipe.settings for word in ("--set", setting)]
        words += ["--folder", str(self.root.absolute()), "--accelerator", self.accelerator]
        return [*words, "--devices", str(self.devices), "--nodes", str(self.nodes)]

    def result(self) -> Result | None:
        """Return the result of a run that is finished for certain.

        None if it is not, and also for a user's images: only `train` reads and compares them.
        """
        result = self.folder.result if is_named(self.recipe.data) else None
        if result is not None:
            recipe = resolved(self.recipe, self.folder, self.accelerator)
            self.folder.check_same(self.model, recipe, self.seed, None)
        return result

    def work(self) -> float:
        """Estimate what is left to be computed, in multiply-adds of convolutions, relative to other jobs of a grid."""
        sizes = DATASETS[self.recipe.data].sizes if is_named(self.recipe.data) else None
        images = 1 if sizes is None else sizes[0]
        whole = self.recipe.train_images or images
        return _products(self.model) * whole * (self.recipe.epochs - len(self.folder.history()))


@lru_cache
def _products(model: str) -> int:
    entry = model_entry(model)
    network = create_model(model)
    shape = (entry.in_channels, entry.image_size, entry.image_size)
    return sum(multiply_adds(network, shape).values())


def jobs_of(
    models: Sequence[str],
    seeds: Sequence[int],
    recipe_name: str,
    root: str | Path,
    *,
    data: str | None = None,
    settings: Sequence[str] = (),
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
) -> list[Job]:
    """Return the runs of every model with every seed, model after model."""
    for items, what in ((models, "models"), (seeds, "seeds")):
        if len(set(items)) != len(items):
            raise ValueError(f"a grid of runs has {what} without repetition, got {list(items)}.")
    for seed in seeds:
        check_seed(seed)
    recipes = {model: changed(get_recipe(recipe_name, model, data), settings) for model in models}
    placement = (Path(root), accelerator, devices, nodes)
    return [
        Job(model, replace(recipe, data=absolute_path(recipe.data)), seed, *placement)
        for model, recipe in recipes.items()
        for seed in seeds
    ]


def train_in_turn(jobs: Sequence[Job], train_one: Callable[[Job], object] = Job.train) -> None:
    """Train one run after the other in this process; runs that another process is training come last."""
    waiting, told = list(jobs), False
    while waiting:
        before, waiting = waiting, []
        for job in before:
            try:
                train_one(job)
            except InUseError:
                waiting.append(job)
        if waiting == before:
            if not told and is_first():
                say(f"waiting for runs that other processes train: {', '.join(job.name for job in waiting)}")
            told = True
            time.sleep(WAIT)
