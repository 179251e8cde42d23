"""How a group moves the tensors inside a network, inferred from their shape or named by the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from coattend.groups import FiniteGroup, Subgroup, embedding, transform_image, transform_map
from coattend.nn import GroupPool, RestrictGroup

Layout = Literal["map", "image", "invariant", "poses", "channel-major fold", "pose-major fold"]
FOLDS = ("channel-major fold", "pose-major fold")


@dataclass(frozen=True)
class Field:
    """A kind of tensor: which axes a group element permutes, and whether it moves the spatial ones.

    The spatial axes are the last d for an action of dimension d, so that images have 2 + d axes and maps 3 + d. A fold
    is a map whose channel and group axes were flattened into one, in that order or the other.

    - over: the group axis of a map holds the left cosets of this subgroup
    - whole: the group of that axis, if the one that acts is a subgroup of it, as before a :class:`RestrictGroup`
    """

    kind: Layout
    over: Subgroup = (0,)
    whole: FiniteGroup | None = None

    def has_positions(self, x: Tensor) -> bool:
        """Return whether a tensor of this kind has spatial axes."""
        return self.kind in ("map", "image") or (self.kind in FOLDS and x.ndim > 2)

    def move(self, x: Tensor, group: FiniteGroup, g: int) -> Tensor:
        """Return the tensor after element g has acted."""
        if self.kind == "invariant":
            return x
        if self.kind == "image":
            return transform_image(x, group, g)
        if self.kind == "map":
            acting, element = self._acting(group, g)
            return transform_map(x, acting, element, over=self.over)
        if self.kind == "poses":
            return move_poses(x, group, g, axis=2)
        axes = (-1, group.order) if self.kind == "channel-major fold" else (group.order, -1)
        axis = 2 if self.kind == "channel-major fold" else 1
        moved = move_poses(x.unflatten(1, axes), group, g, axis).flatten(1, 2)
        return transform_image(moved, group, g) if x.ndim > 2 else moved

    def move_poses(self, x: Tensor, group: FiniteGroup, g: int) -> Tensor:
        """Return a map, or poses without positions, after element g has acted on the poses alone."""
        return move_poses(x, *self._acting(group, g), axis=2)

    def _acting(self, group: FiniteGroup, g: int) -> tuple[FiniteGroup, int]:
        return (group, g) if self.whole is None else (self.whole, embedding(group, self.whole)[g])


def move_poses(x: Tensor, group: FiniteGroup, g: int, axis: int) -> Tensor:
    """Left-translate one axis that holds the group's elements: entry h comes from g^-1 h."""
    return x.index_select(axis, torch.tensor(group.relative[g], device=x.device))


def candidate_fields(x: Tensor, group: FiniteGroup, axes: Mapping[int, Field]) -> list[Field]:
    """Return what a tensor of this shape can be, the documented layout first; empty if its group axis fits nothing.

    ``axes`` are the other lengths of group axes, see :func:`group_axes`.
    """
    n, image_rank = group.order, image_axes(group)
    if x.ndim == image_rank + 1:
        if x.shape[2] == n:
            return [Field("map")]
        return [axes[x.shape[2]]] if x.shape[2] in axes else []
    folds = [Field("channel-major fold"), Field("pose-major fold")] if x.ndim in (2, image_rank) and n > 1 else []
    folds = [f for f in folds if x.shape[1] % n == 0]
    poses = [Field("poses")] if x.ndim == 3 and x.shape[2] == n else []
    if x.ndim == image_rank:
        return [Field("image"), *folds, *poses]
    if poses:
        return [*poses, Field("invariant")]
    return [Field("invariant"), *folds]


def image_axes(group: FiniteGroup) -> int:
    """Return how many axes an image has: batch, channels, and the spatial ones; 4 for a group without an action."""
    return 2 + (group.dimension or 2)


def field_of(x: Tensor, group: FiniteGroup, axes: Mapping[int, Field], role: str, layout: Layout | None) -> Field:
    """Return what a tensor is: the layout that the user names, else the documented one of its shape.

    A group without an action leaves images alone, so as an input they would prove nothing.
    """
    field = _named_or_shaped(x, group, axes, role, layout)
    if role == "input" and field.kind == "image" and group.action is None:
        raise ValueError(
            f"{group.name} is a bare table and does not say how its elements move an image; pass a map (batch, "
            f"channels, group={group.order}, height, width), or a group with an action."
        )
    return field


def _named_or_shaped(
    x: Tensor, group: FiniteGroup, axes: Mapping[int, Field], role: str, layout: Layout | None
) -> Field:
    if layout is None:
        candidates = candidate_fields(x, group, axes)
        if not candidates:
            raise ValueError(_misfit(x, group, role))
        return candidates[0]
    n, image_rank = group.order, image_axes(group)
    fits = {
        "map": x.ndim == image_rank + 1 and x.shape[2] in {n, *axes},
        "image": x.ndim >= image_rank,
        "invariant": True,
        "poses": x.ndim >= 3 and x.shape[2] == n,
        **dict.fromkeys(FOLDS, x.ndim in (2, image_rank) and x.shape[1] % n == 0),
    }
    if layout not in fits:
        raise ValueError(f"{role}_layout must be one of {', '.join(get_args(Layout))}, or None, got {layout!r}.")
    if not fits[layout]:
        if layout == "map" and x.ndim == image_rank + 1:
            raise ValueError(_misfit(x, group, role))
        raise ValueError(
            f"the {role} {tuple(x.shape)} cannot be laid out as {layout!r} over {group.name}, which has order {n}; "
            f"docs/conventions.md lists the layouts, {role}_layout=None tells them from the shape."
        )
    whole = layout != "map" or x.shape[2] == n
    return Field(layout) if whole else axes[x.shape[2]]


def _misfit(x: Tensor, group: FiniteGroup, role: str) -> str:
    return (
        f"the {role} {tuple(x.shape)} has a group axis of {x.shape[2]}, but {group.name} has order {group.order}; "
        "pass the group the module was built over, or over=K if the axis holds the left cosets of a subgroup K."
    )


def group_axes(module: nn.Module, over: Iterable[int] | None, group: FiniteGroup) -> dict[int, Field]:
    """Return the lengths that a group axis has after coset pooling and before a restriction, with how it moves."""
    subgroups = [m.over for m in module.modules() if isinstance(m, GroupPool) and m.group == group and m.over]
    if over is not None:
        subgroups.append(group.verified_subgroup(over))
    image = {1: Field("map", tuple(group.elements))}  # a group axis of length 1 is an image
    larger = {whole.order: Field("map", whole=whole) for whole in _restricted_groups(module, group)}
    return {**image, **larger, **{group.order // len(k): Field("map", k) for k in subgroups}}


def _restricted_groups(module: nn.Module, group: FiniteGroup) -> list[FiniteGroup]:
    """Return the groups that layers of a module restrict to this one, in one step or several."""
    layers = [m for m in module.modules() if isinstance(m, RestrictGroup) and m.group.action is not None]
    larger: list[FiniteGroup] = []
    reached = [group]
    while reached:
        target = reached.pop()
        sources = {m.group for m in layers if m.to_group == target and m.group != target} - {*larger}
        larger.extend(sources)
        reached.extend(sources)
    return larger
