"""Train one network by one recipe with one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from coattend.data import Dataset, load_data, make_augmentation
from coattend.models import model_entry
from coattend.models.registry import register_module, register_user_model
from coattend.nn import GroupBatchNorm2d
from coattend.tasks import make_task
from coattend.train.batches import SEEDS, chosen_splits, prepare
from coattend.train.network import build_network, check_outputs, count_parameters, start_from
from coattend.train.precision import check_one_precision, resolved
from coattend.train.processes import by_first, launched_fabric, lost_processes_named, together
from coattend.train.recipe import Recipe, changed
from coattend.train.recipes import get_recipe
from coattend.train.run import Result, absolute_path, is_named
from coattend.train.run_folder import RunFolder
from coattend.train.training import Training


def train(
    model_name: str,
    recipe: Recipe,
    seed: int,
    root: str | Path,
    *,
    name: str | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
) -> Result:
    """Train a network, or continue a training that was stopped, or return the result of one that is finished.

    ``model_name`` is a registered name, or ``module:function`` for a network of the user's own. The run's folder below
    ``root`` is called after data, network and recipe, or ``name``.

    A run that was stopped at any moment and is started again ends bit-identical, on a CPU, to one that was not: every
    epoch draws its randomness from seed and epoch alone, and a run continues from the last whole epoch.
    """
    register_user_model(model_name, trusted=True)
    model_entry(model_name)
    return _train(model_name, None, recipe, seed, root, name, accelerator, devices, nodes)


def fit(
    model: str | nn.Module | Callable[..., nn.Module],
    data: Dataset | str | Path,
    recipe: Recipe | str = "house",
    *,
    seed: int = 0,
    root: str | Path = "runs",
    name: str | None = None,
    settings: Sequence[str] = (),
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
) -> Result:
    """Train any network on any data as :func:`train` does: with a run folder, resumable, with report and export.

    - model: a registered name, ``"module:function"``, a function or class of ``num_classes`` and ``in_channels`` that
      returns a torch module, or a module, whose weights the training starts from. To load the trained network in
      another process, the function or class has to be importable there.
    - data: a :class:`Dataset`, for example of ``coattend.data.from_datasets``, or a name or path for ``load_data``
    - recipe: a recipe or its name; ``settings`` change it as ``--set`` does
    """
    key = model if isinstance(model, str) else register_module(model)
    register_user_model(key, trusted=True)
    where = data.name if isinstance(data, Dataset) else str(data)
    chosen = replace(recipe, data=where) if isinstance(recipe, Recipe) else get_recipe(recipe, key, where)
    passed = data if isinstance(data, Dataset) else None
    return _train(key, passed, changed(chosen, settings), seed, root, name, accelerator, devices, nodes)


def _train(
    model_name: str,
    passed: Dataset | None,
    recipe: Recipe,
    seed: int,
    root: str | Path,
    name: str | None,
    accelerator: str,
    devices: int,
    nodes: int,
) -> Result:
    if not isinstance(recipe, Recipe):
        raise ValueError(f"train expects a recipe, as get_recipe returns it, got {recipe!r}.")
    if not isinstance(root, (str, Path)):
        raise ValueError(f"train expects the folder for its runs as a path, got {root!r}.")
    check_seed(seed)
    if passed is None:
        recipe = replace(recipe, data=absolute_path(recipe.data))
    if recipe.start is not None:
        recipe = replace(recipe, start=absolute_path(recipe.start))
    folder = RunFolder.of(root, model_name, recipe, seed, name)
    recipe = resolved(recipe, folder, accelerator)

    def finished(data: Dataset | None) -> Result | None:
        result = folder.result
        if result is None:
            return None
        folder.check_same(model_name, recipe, seed, data)
        folder.drop_checkpoint()
        return replace(result, was_finished=True)

    with ExitStack() as stack:
        fabric = launched_fabric(recipe, accelerator, devices, nodes)
        leads = fabric.is_global_zero  # only the first process touches the run folder
        stack.enter_context(lost_processes_named())
        stack.enter_context(folder.writing())
        check_one_precision(fabric, recipe)
        # A user's images are read before a result is returned: another folder may have the same name.
        named = passed is None and is_named(recipe.data)
        if named and (result := by_first(fabric, lambda: finished(None))) is not None:
            return result
        data = together(fabric, lambda: load_recipe_data(recipe) if passed is None else passed)
        if (result := by_first(fabric, lambda: finished(data))) is not None:
            return result
        task = together(fabric, lambda: make_task(data, chosen_splits(data, recipe)[0], is_balanced(recipe)))
        if recipe.keep_poses < 1 and task.name != "classification":
            raise ValueError(f"keep_poses measures contributions to the classes of images, not for {task.name}.")
        prepared = together(fabric, lambda: prepare(data, recipe, fabric.device))
        make_augmentation(recipe.augmentation)  # refuses unknown steps before anything is written
        torch.manual_seed(seed)
        network = together(fabric, lambda: build_network(model_name, data))
        together(fabric, lambda: check_outputs(network, task, data))
        together(fabric, lambda: start_from(network, recipe))
        GroupBatchNorm2d.convert_sync_batchnorm(network, fabric.world_size > 1)
        parameters = count_parameters(network)
        together(fabric, lambda: stack.enter_context(folder.lock()) if leads else None)
        if (result := by_first(fabric, lambda: finished(data))) is not None:  # by a process that had the lock before
            return result
        by_first(fabric, lambda: folder.describe(model_name, recipe, seed, data, parameters, fabric.device))
        by_first(fabric, lambda: folder.write_skipped(data.skipped))
        return Training(fabric, folder, recipe, seed, data, prepared, task).run(network, f"{model_name} seed {seed}")


def load_recipe_data(recipe: Recipe) -> Dataset:
    """Load the dataset of a recipe as its fields say."""
    return load_data(
        recipe.data,
        size=recipe.size,
        fit=recipe.fit,
        keep=recipe.keep_images,
        bad_files=recipe.bad_files,
        group=recipe.group,
    )


def is_balanced(recipe: Recipe) -> bool:
    """Whether the loss weighs all classes alike."""
    return recipe.class_weights == "balanced"


def check_seed(seed: int) -> None:
    """Raise unless every epoch's randomness can be drawn from this seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise ValueError(f"a seed is a whole number from 0 to {SEEDS - 1}, got {seed}.")
