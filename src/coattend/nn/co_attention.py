"""Co-attention as a layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from coattend.functional import build_kernels
from coattend.functional.attention import attend, attend_slices, attention_index, attention_mask, attention_matrix
from coattend.groups import FiniteGroup
from coattend.nn.attention import PoseAttention
from coattend.nn.checks import check_choice, check_dtype, check_integer, check_number, check_real_map

Structure = Literal["group", "paper", "full"]


class CoAttention(PoseAttention):
    """Weigh the responses of the poses relative to one another, separately for each channel and position.

    ``l[g] = scale sum_h x[h] A[h, g]``, ``mask = softmax(l) / max softmax(l)``, ``y = mask * x``.

    - scale: 1 / n unless another number is given
    - x: the n responses along the group axis; A: the matrix of the channel; n: the group's order
    - ``structure="group"``: ``A[h, g] = a[g^-1 h]``, one vector ``a`` per channel, exactly equivariant to any group
    - ``structure="paper"``: the circulant blocks of [RH20] Eq. 11, for dihedral groups and C2 x Cn (for cyclic groups
      Eq. 9, the same as "group")
    - ``structure="full"``: a free matrix, the paper's A^F, which is not equivariant

    [RH20] Eqs. 6-11. Initialized as in section 4: drawn from N(0, init_std^2) like the rest of the layer, then the
    diagonal is set to init_diagonal, 1.
    Shapes: (batch, channels, group, height, width) in and out; weight (channels, group), "full": (channels, group,
    group).
    Differs from the paper: Eq. 11 does not commute with the mirrors of dihedral groups, so "group" is the default.
    Eq. 9 as printed is anti-circulant; the circulant is meant.

    >>> CoAttention(10, group="p4")
    CoAttention(10, group=C4, structure='group')
    """

    slice_parameters: ClassVar[Mapping[str, int]] = {"weight": 0}
    scale: float | None = None  # also of layers pickled before there was a choice
    heads = 1
    index: Tensor | None

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        structure: Structure = "group",
        init_std: float = 0.05,
        init_diagonal: float = 1.0,
        scale: float | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group)
        check_choice(self, "structure", structure, get_args(Structure))
        self.structure = structure
        self.init_std = check_number(self, "init_std", init_std, 0)
        self.init_diagonal = check_number(self, "init_diagonal", init_diagonal, -math.inf)
        if scale is not None:
            self.scale = check_number(self, "scale", scale, 0)
        n, vectors = self.group.order, self.heads * self.channels
        shape = (vectors, n, n) if structure == "full" else (vectors, n)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_buffer("index", None, persistent=False)
        self._make_tables(self.weight)
        self.reset_parameters()
        build_kernels()

    def reset_parameters(self, std: float | None = None, diagonal: float | None = None) -> None:
        """Draw from N(0, std^2), by default init_std, and set the diagonal of the matrix, by default to init_diagonal.

        With a diagonal of 0 the mask of a new layer is almost 1 for all poses; the larger the diagonal, the more the
        strongest pose stands out.
        """
        diagonal = self.init_diagonal if diagonal is None else diagonal
        nn.init.normal_(self.weight, std=self.init_std if std is None else std)
        with torch.no_grad():
            if self.structure == "full":
                self.weight.diagonal(dim1=-2, dim2=-1).fill_(diagonal)
            else:
                self.weight[:, 0].fill_(diagonal)

    @property
    def is_equivariant(self) -> bool:
        """Whether the matrix commutes with every left translation of the group, whatever its weights."""
        if self.index is None:
            return self.group.order == 1
        p = torch.tensor(self.group.product, device=self.index.device)
        return all(torch.equal(self.index[p[g][:, None], p[g]], self.index) for g in self.group.elements)

    def matrix(self) -> Tensor:
        """Return the matrices A, (channels, source pose, target pose), times ``n * scale``: 1 by default."""
        matrix = self.weight if self.index is None else attention_matrix(self.weight, self.index)
        return matrix if self.scale is None else matrix * (self.scale * self.group.order)

    def mask(self, x: Tensor) -> Tensor:
        """Return the mask of a map, in [0, 1], the largest value along the group axis being 1."""
        self.check(x)
        return attention_mask(x, self.matrix())

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return attend(x, self.matrix(), self.group if self.structure == "group" else None)

    def attend_slices(self, planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
        """See :meth:`PoseAttention.attend_slices`; one pass that does not gather the slices."""
        if not self.is_fusible():
            return super().attend_slices(planes, rows, channel_step)
        return attend_slices(planes, self.matrix(), rows, channel_step)

    def freeze(self, builder: Any, value: Any) -> Any:
        """See :meth:`PoseAttention.freeze`; a product of small matrices and a few element-wise operations."""
        return builder.co_attention(self.matrix(), value)

    def check(self, x: Tensor) -> None:
        """Require a map with the layer's channels and poses, on the device and in the dtype of its parameters."""
        check_real_map(self, x, self.channels, self.group.order, self.group.dimension)
        check_dtype(self, x, self.weight)

    def extra_repr(self) -> str:
        scale = "" if self.scale is None else f", scale={self.scale:g}"
        return f"{super().extra_repr()}, structure={self.structure!r}{scale}"

    def _tables(self) -> dict[str, Tensor]:
        if self.structure == "full":
            return {}
        return {"index": (attention_index if self.structure == "group" else paper_index)(self.group)}


class MultiheadCoAttention(CoAttention):
    """Co-attention with several vectors per channel, whose masks are averaged: ``y = x * mean_k mask_k``.

    Arguments as :class:`CoAttention`, and ``heads``, the number of vectors. Masks are in [0, 1]; a pose passes whole if
    all heads attend to it most.

    Shapes: as CoAttention; weight (heads * channels, group), head by head.

    >>> MultiheadCoAttention(10, "p4", heads=2).weight.shape
    torch.Size([20, 4])
    """

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        structure: Structure = "group",
        init_std: float = 0.05,
        init_diagonal: float = 1.0,
        scale: float | None = None,
        heads: int = 2,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.heads = check_integer(self, "heads", heads, 1)
        super().__init__(channels, group, structure, init_std, init_diagonal, scale, device=device, dtype=dtype)

    def mask(self, x: Tensor) -> Tensor:
        """Return the mean of the masks of the heads."""
        self.check(x)
        return torch.stack([attention_mask(x, matrix) for matrix in self.matrix().chunk(self.heads)]).mean(0)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return torch.stack([attend(x, matrix) for matrix in self.matrix().chunk(self.heads)]).mean(0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"


def paper_index(group: FiniteGroup) -> Tensor:
    """Return the index of Eq. 11 as printed: ``[[A1, A2], [A2, A1]]`` with circulant A1, A2; Eq. 9 for a cyclic group.

    ``index[i, j] = n * (m_i xor m_j) + (r_i - r_j) mod n`` for elements numbered ``n * m + r``.
    """
    turns = _turns_per_block(group)
    mirror, r = torch.arange(group.order).div(turns, rounding_mode="floor"), torch.arange(group.order) % turns
    return turns * (mirror[:, None] ^ mirror) + (r[:, None] - r) % turns


def _turns_per_block(group: FiniteGroup) -> int:
    """Return n if the elements are n rotations in order, or n rotations and n mirrored ones: Cn, Dn or C2 x Cn."""
    product, order = group.product, group.order
    n = 1  # element 1 has the powers 0, 1, ..., n - 1
    while n < order and product[n - 1, 1] == n:
        n += 1
    if n == order:
        return n
    if order == 2 * n and product[n, n] == 0:
        conjugated = product[product[n, 1], n]
        in_blocks = (product[:n, n] == range(n, 2 * n)).all() or (product[n, :n] == range(n, 2 * n)).all()
        if in_blocks and conjugated in (1, (n - 1) % order):
            return n
    raise ValueError(
        f'structure="paper" is Eq. 11, written for n rotations and their mirror images (Cn, Dn, C2 x Cn, numbered '
        f'n * mirror + rotation), got {group.name}; structure="group" serves every group.'
    )
