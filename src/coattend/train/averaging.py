"""Weights averaged over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from coattend.models import EquivariantNetwork
from coattend.train.recipe import Recipe


class AveragedWeights:
    """A copy of a network whose parameters are ``mean <- decay * mean + (1 - decay) * parameter`` after every step.

    The first step is taken over as it is. Buffers, among them the statistics of norms, are those of the network after
    the last step, which do not fit averaged weights: re-estimate them before a test.
    """

    def __init__(self, network: EquivariantNetwork, decay: float) -> None:
        self._model = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @property
    def network(self) -> EquivariantNetwork:
        """The network with averaged weights."""
        return cast(EquivariantNetwork, self._model.module)

    def update(self, network: EquivariantNetwork) -> None:
        """Take a step of the network into the average."""
        self._model.update_parameters(network)

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the averages, and the number of steps in them."""
        return self._model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set the averages."""
        self._model.load_state_dict(dict(state))


def make_average(
    network: EquivariantNetwork, recipe: Recipe, state: Mapping[str, Tensor] | None = None
) -> AveragedWeights | None:
    """Return the recipe's average, new or continued from a state; None if the recipe has none."""
    if recipe.averaging == 0:
        return None
    average = AveragedWeights(network, recipe.averaging)
    if state is not None:
        average.load_state_dict(state)
    return average
