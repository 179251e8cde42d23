"""Vectors and axes at every position, which turn with the image: map -> field."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coattend.functional import orientation_field
from coattend.functional.orientation import orientation_filters
from coattend.groups import FiniteGroup, Orientation, get_group, orientation_action
from coattend.nn._conv_base import Device
from coattend.nn.checks import check_dtype, check_integer, check_map
from coattend.nn.tables import TabledModule


class OrientationField(TabledModule):
    """Read vectors or axes from the poses at every position: map -> field.

    ``v[f](u) = sum_c sum_g x[c, g](u) rho(g) W[f, c]``, rho(g) the matrix by which g moves a vector, or an axis, and
    W[f, c] a pair of numbers. If the image is moved by g, the field moves as a field: ``v'(u) = rho(g) v(g^-1 u)``. A
    vector is (x, y), x to the right and y up. An axis at the angle a, the same as at a + 180 degrees, is
    (cos 2a, sin 2a) times a strength; :func:`coattend.functional.orientation_angle` returns the angle.

    Shapes: (batch, channels, group, height, width) -> (batch, 2 * fields, height, width); weight (fields, channels, 2).
    There is no bias: a constant direction would not turn.
    Differs from the paper: it has no such layer.

    >>> OrientationField(10, group="p4m")(torch.zeros(2, 10, 8, 5, 5)).shape
    torch.Size([2, 2, 5, 5])
    """

    action: Tensor

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        fields: int = 1,
        kind: Orientation = "axis",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = check_integer(self, "channels", channels, 1)
        self.fields = check_integer(self, "fields", fields, 1)
        self.group = get_group(group)
        self.kind: Orientation = kind
        self.weight = nn.Parameter(torch.empty(self.fields, self.channels, 2, device=device, dtype=dtype))
        self._make_tables(self.weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 1 / (channels * group))."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.channels * self.group.order))

    def forward(self, x: Tensor) -> Tensor:
        check_map(self, x, self.channels, self.group.order, self.group.dimension)
        check_dtype(self, x, self.weight)
        return orientation_field(x, self.weight, self.group, self.kind, action=self.action)

    def filters(self) -> Tensor:
        """Return the filters (2 * fields, channels * group, 1, 1) of the plain convolution that it computes."""
        return orientation_filters(self.weight, self.action)

    def _tables(self) -> dict[str, Tensor]:
        return {"action": torch.tensor(orientation_action(self.group, self.kind))}

    def extra_repr(self) -> str:
        return f"{self.channels}, group={self.group.name}, fields={self.fields}, kind={self.kind!r}"
