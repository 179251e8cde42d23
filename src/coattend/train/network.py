"""The network of a training: built for its data, checked against its task, and started from other weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coattend.data import Dataset
from coattend.models import EquivariantNetwork, create_model, model_entry, read_model_file
from coattend.models.classifier import weights_file
from coattend.models.records import RunError
from coattend.nn.observe import evaluating
from coattend.tasks import Task
from coattend.train.recipe import Recipe

LEAST_SHARE = 0.5  # of the parameters that have to be in the file that a training starts from


def build_network(model_name: str, data: Dataset) -> EquivariantNetwork:
    """Build a network for a dataset: classes and channels follow the data where they differ from the entry's."""
    defaults = model_entry(model_name).defaults
    of_the_data = {"num_classes": len(data.classes), "in_channels": data.image_shape[0]}
    options: Mapping[str, Any] = {key: value for key, value in of_the_data.items() if value != defaults[key]}
    return create_model(model_name, **options)


def check_outputs(network: EquivariantNetwork, task: Task, data: Dataset) -> None:
    """Raise unless the network returns what the task needs, for two images of the data's shape."""
    expected = (2, *task.output_shape(data.image_shape))
    with evaluating(network):
        outputs = network(torch.zeros(2, *data.image_shape, dtype=next(network.parameters()).dtype))
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != expected:
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise RunError(
            f"{task.name} on {data.name} needs a network that maps images {(2, *data.image_shape)} to {expected}, got "
            f"{got}; choose another network, or build this one for {len(task.classes)} outputs."
        )


def start_from(network: EquivariantNetwork, recipe: Recipe) -> None:
    """Load the weights that the recipe starts from, as far as their names and shapes are those of the network."""
    if recipe.start is None:
        return
    path = weights_file(recipe.start)
    stored, own = read_model_file(path)[1], network.state_dict()
    fitting = {key: tensor for key, tensor in stored.items() if key in own and own[key].shape == tensor.shape}
    sizes = {key: parameter.numel() for key, parameter in network.named_parameters()}
    share = sum(size for key, size in sizes.items() if key in fitting) / sum(sizes.values())
    if share < LEAST_SHARE:
        raise RunError(
            f"{path} has weights of fitting names and shapes for {share:.0%} of the parameters only; start from a run "
            "of the same network and options."
        )
    network.load_state_dict({**own, **fitting})


def count_parameters(network: EquivariantNetwork) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in network.parameters())
