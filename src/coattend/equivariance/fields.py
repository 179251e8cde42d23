"""How a group moves the tensors inside a network, inferred from their shape or named by the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from coattend.groups import FiniteGroup, Subgroup, embedding, orientation_action, transform_image, transform_map
from coattend.nn import GroupPool, OrientationField, RestrictGroup

Layout = Literal["map", "image", "invariant", "poses", "channel-major fold", "pose-major fold", "vector", "axis"]
FOLDS = ("channel-major fold", "pose-major fold")
ORIENTATIONS = ("vector", "axis")


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
        return self.kind in ("map", "image", *ORIENTATIONS) or (self.kind in FOLDS and x.ndim > 2)

    def move(self, x: Tensor, group: FiniteGroup, g: int) -> Tensor:
        """Return the tensor after element g has acted."""
        if self.kind == "invariant":
            return x
        if self.kind == "image":
            return transform_image(x, group, g)
        if self.kind == "vector" or self.kind == "axis":
            rho = torch.tensor(orientation_action(group, self.kind)[g], device=x.device, dtype=x.dtype)
            turned = torch.einsum("ab,nfb...->nfa...", rho, x.unflatten(1, (-1, 2))).flatten(1, 2)
            return transform_image(turned, group, g)
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


@dataclass(frozen=True)
class OtherLayouts:
    """What tensors of a module can be besides maps on the group, images and invariants.

    - axes: the lengths of group axes after coset pooling and before a restriction, with how they move
    - orientations: by number of channels, the fields that its :class:`OrientationField` layers return
    """

    axes: Mapping[int, Field]
    orientations: Mapping[int, Field]


def candidate_fields(x: Tensor, group: FiniteGroup, others: OtherLayouts) -> list[Field]:
    """Return what a tensor of this shape can be, the documented layout first; empty if its group axis fits nothing."""
    n, image_rank = group.order, image_axes(group)
    if x.ndim == image_rank + 1:
        if x.shape[2] == n:
            return [Field("map")]
        return [others.axes[x.shape[2]]] if x.shape[2] in others.axes else []
    folds = [Field("channel-major fold"), Field("pose-major fold")] if x.ndim in (2, image_rank) and n > 1 else []
    folds = [f for f in folds if x.shape[1] % n == 0]
    poses = [Field("poses")] if x.ndim == 3 and x.shape[2] == n else []
    if x.ndim == image_rank:
        orientations = [others.orientations[x.shape[1]]] if x.shape[1] in others.orientations else []
        return [Field("image"), *orientations, *folds, *poses]
    if poses:
        return [*poses, Field("invariant")]
    return [Field("invariant"), *folds]


def image_axes(group: FiniteGroup) -> int:
    """Return how many axes an image has: batch, channels, and the spatial ones; 4 for a group without an action."""
    return 2 + (group.dimension or 2)


def field_of(x: Tensor, group: FiniteGroup, others: OtherLayouts, role: str, layout: Layout | None) -> Field:
    """Return what a tensor is: the layout that the user names, else the documented one of its shape.

    A group without an action leaves images alone, so as an input they would prove nothing.
    """
    field = _named_or_shaped(x, group, others, role, layout)
    if role == "input" and field.kind == "image" and group.action is None:
        raise ValueError(
            f"{group.name} is a bare table and does not say how its elements move an image; pass a map (batch, "
            f"channels, group={group.order}, height, width), or a group with an action."
        )
    return field


def _named_or_shaped(x: Tensor, group: FiniteGroup, others: OtherLayouts, role: str, layout: Layout | None) -> Field:
    if layout is None:
        candidates = candidate_fields(x, group, others)
        if not candidates:
            raise ValueError(_misfit(x, group, role))
        orientations = [c for c in candidates if c.kind in ORIENTATIONS and role == "output"]
        return (orientations or candidates)[0]
    n, image_rank = group.order, image_axes(group)
    fits = {
        "map": x.ndim == image_rank + 1 and x.shape[2] in {n, *others.axes},
        "image": x.ndim >= image_rank,
        **dict.fromkeys(ORIENTATIONS, x.ndim == image_rank and x.shape[1] % 2 == 0 and group.planar is not None),
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
    return Field(layout) if whole else others.axes[x.shape[2]]


def _misfit(x: Tensor, group: FiniteGroup, role: str) -> str:
    return (
        f"the {role} {tuple(x.shape)} has a group axis of {x.shape[2]}, but {group.name} has order {group.order}; "
        "pass the group the module was built over, or over=K if the axis holds the left cosets of a subgroup K."
    )


def other_layouts(module: nn.Module, over: Iterable[int] | None, group: FiniteGroup) -> OtherLayouts:
    """Return what the tensors of a module can be, as its layers tell, besides maps, images and invariants."""
    subgroups = [m.over for m in module.modules() if isinstance(m, GroupPool) and m.group == group and m.over]
    if over is not None:
        subgroups.append(group.verified_subgroup(over))
    image = {1: Field("map", tuple(group.elements))}  # a group axis of length 1 is an image
    larger = {whole.order: Field("map", whole=whole) for whole in _restricted_groups(module, group)}
    layers = (m for m in module.modules() if isinstance(m, OrientationField) and group.planar is not None)
    return OtherLayouts(
        {**image, **larger, **{group.order // len(k): Field("map", k) for k in subgroups}},
        {2 * layer.fields: Field(layer.kind) for layer in layers},
    )


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
