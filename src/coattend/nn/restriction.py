"""Restriction of a map on a group to a subgroup, after which a network has the symmetry of the subgroup only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coattend.groups import FiniteGroup, embedding, get_group
from coattend.nn.checks import check_real_map
from coattend.nn.tables import TabledModule


class RestrictGroup(TabledModule):
    """Read a map on a group G as several maps on a subgroup K, one for each right coset K r: map -> map.

    ``y[c * cosets + i, k] = x[c, k r_i]``. No number changes: the layer sorts planes, and where the elements of K are
    the first of G it is a reshape. It commutes with every element of K; layers over K can follow.

    ``to`` is a group whose elements act as some of G do, or the elements of G that form K, which are renumbered in
    ascending order.

    Shapes: (batch, channels, |G|, height, width) -> (batch, channels * |G| / |K|, |K|, height, width).
    Differs from the paper: it has one group throughout; Weiler and Cesa (2019) restrict groups with depth.

    >>> RestrictGroup("D4", to="C4")(torch.zeros(2, 3, 8, 5, 5)).shape
    torch.Size([2, 6, 4, 5, 5])
    """

    planes: Tensor

    def __init__(self, group: FiniteGroup | str, to: FiniteGroup | str | Iterable[int]) -> None:
        super().__init__()
        self.group = get_group(group)
        if isinstance(to, (FiniteGroup, str)):
            self.to_group = get_group(to)
            self.elements = embedding(self.to_group, self.group)
        else:
            self.elements = self.group.verified_subgroup(to)
            self.to_group = self.group.restrict(self.elements)
        self.reset_parameters()

    @property
    def cosets(self) -> int:
        """How many maps on the subgroup one map on the group becomes."""
        return self.group.order // self.to_group.order

    def reset_parameters(self) -> None:
        """Recompute the table of planes; the layer has no parameters."""
        self._make_tables(torch.empty(0) if "planes" not in self._buffers else self.planes)

    def forward(self, x: Tensor) -> Tensor:
        check_real_map(self, x, order=self.group.order, dimension=self.group.dimension)
        return x.index_select(2, self.planes).unflatten(2, (self.cosets, self.to_group.order)).flatten(1, 2)

    def _tables(self) -> dict[str, Tensor]:
        representatives = self.group.right_cosets(self.elements)[:, 0]
        elements = self.group.product[list(self.elements)][:, representatives].T  # cosets, subgroup: k r_i
        return {"planes": torch.tensor(elements.flatten())}

    def extra_repr(self) -> str:
        return f"{self.group.name}, to={self.to_group.name}"
