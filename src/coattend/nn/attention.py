"""Co-attention as a layer, and how to read its masks out of any model."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from coattend.functional import attend, attention_index, attention_mask, attention_matrix
from coattend.groups import FiniteGroup, get_group
from coattend.nn.checks import check_choice, check_dtype, check_integer, check_model, check_number, check_real_map
from coattend.nn.evaluating import evaluating
from coattend.nn.tables import TabledModule

Structure = Literal["group", "paper", "full"]

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GLOBAL_HOOKS = tuple(f"_global{hooks}" for hooks in MODULE_HOOKS)


class CoAttention(TabledModule):
    """Weigh the responses of the poses relative to one another, separately for each channel and position.

    ``l[g] = sum_h x[h] A[h, g] / n``, ``mask = softmax(l) / max softmax(l)``, ``y = mask * x``.

    - x: the n responses along the group axis; A: the matrix of the channel; n: the group's order
    - ``structure="group"``: ``A[h, g] = a[g^-1 h]``, one vector ``a`` per channel, exactly equivariant to any group
    - ``structure="paper"``: the circulant blocks of [RH20] Eq. 11, for dihedral groups and C2 x Cn (for cyclic groups
      Eq. 9, the same as "group")
    - ``structure="full"``: a free matrix, the paper's A^F, which is not equivariant

    [RH20] Eqs. 6-11. Initialised as in section 4: drawn from N(0, init_std^2) like the rest of the layer, then the
    diagonal is set to init_diagonal, 1.
    Shapes: (batch, channels, group, height, width) in and out; weight (channels, group), "full": with one axis more.
    Differs from the paper: Eq. 11 does not commute with the mirrors of dihedral groups, so "group" is the default;
    Eq. 9 read to the letter is anti-circulant, meant is the circulant.

    >>> CoAttention(10, group="p4")
    CoAttention(C4, channels=10, structure='group')
    """

    index: Tensor | None

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        structure: Structure = "group",
        init_std: float = 0.05,
        init_diagonal: float = 1.0,
    ) -> None:
        super().__init__()
        self.channels = check_integer(self, "channels", channels, 1)
        check_choice(self, "structure", structure, get_args(Structure))
        self.group = get_group(group)
        self.structure = structure
        self.init_std = check_number(self, "init_std", init_std, 0)
        self.init_diagonal = check_number(self, "init_diagonal", init_diagonal, -math.inf)
        n = self.group.order
        self.weight = nn.Parameter(torch.empty(self.channels, *((n, n) if structure == "full" else (n,))))
        self.register_buffer("index", None, persistent=False)
        self._make_tables(self.weight)
        self.reset_parameters()

    def reset_parameters(self, std: float | None = None, diagonal: float | None = None) -> None:
        """Draw from N(0, std^2), by default init_std, and set the diagonal of the matrix, by default to init_diagonal.

        With a diagonal of 0 the mask of a new layer is almost 1 for all poses; the larger it is, the more the strongest
        pose stands out.
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
        """The matrices A, (channels, source pose, target pose)."""
        return self.weight if self.index is None else attention_matrix(self.weight, self.index)

    def mask(self, x: Tensor) -> Tensor:
        """The mask for a map, in [0, 1], the largest value along the group axis being 1."""
        self._check(x)
        return attention_mask(x, self.matrix())

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        self._check(x)
        return attend(x, self.matrix())

    def extra_repr(self) -> str:
        """Print the layer as a signature."""
        return f"{self.group.name}, channels={self.channels}, structure={self.structure!r}"

    def _tables(self) -> dict[str, Tensor]:
        if self.structure == "full":
            return {}
        return {"index": (attention_index if self.structure == "group" else paper_index)(self.group)}

    def _check(self, x: Tensor) -> None:
        check_real_map(self, x, self.channels, self.group.order)
        check_dtype(self, x, self.weight)


def is_plain_attention(module: nn.Module) -> bool:
    """Whether to call the module is to compute ``attend(x, module.matrix())``, seen and changed by nobody.

    Then a layer may compute it in another way. It may not if the module was replaced, if a subclass or an assignment
    overrides its ``forward``, or if a hook wants to see or change what goes in and out.
    """
    return (
        isinstance(module, CoAttention)
        and type(module).forward is CoAttention.forward
        and type(module).__call__ is nn.Module.__call__
        and "forward" not in vars(module)
        and not any(getattr(module, hooks) for hooks in MODULE_HOOKS)
        and not any(getattr(nn.modules.module, hooks) for hooks in GLOBAL_HOOKS)
    )


def paper_index(group: FiniteGroup) -> Tensor:
    """Eq. 11 as printed: ``[[A1, A2], [A2, A1]]`` with circulant A1, A2; Eq. 9 for a cyclic group.

    ``index[i, j] = n * (m_i xor m_j) + (r_i - r_j) mod n`` for elements numbered ``n * m + r``.
    """
    turns = _turns_per_block(group)
    mirror, r = torch.arange(group.order).div(turns, rounding_mode="floor"), torch.arange(group.order) % turns
    return turns * (mirror[:, None] ^ mirror) + (r[:, None] - r) % turns


def _turns_per_block(group: FiniteGroup) -> int:
    """n if the elements are n rotations in order, or n rotations and n mirrored ones: Cn, Dn or C2 x Cn."""
    product, order = group.product, group.order
    powers = [0]
    while len(powers) < order and (nxt := int(product[powers[-1], 1])) == len(powers):
        powers.append(nxt)
    n = len(powers)
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


def attention_masks(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The mask of every co-attention layer of a model for one input: ``{layer name: (b, c, g, h, w)}``.

    Runs in evaluation mode without gradients; the model is left as it was.
    """
    check_model("attention_masks", model)
    masks: dict[str, Tensor] = {}

    def record(name: str, layer: CoAttention) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            masks[name] = layer.mask(inputs[0])

        return layer.register_forward_pre_hook(hook)

    handles = [record(name, m) for name, m in model.named_modules() if isinstance(m, CoAttention)]
    with evaluating(model):
        try:
            model(x)
        finally:
            for handle in handles:
                handle.remove()
    return masks
