"""Fields of vectors and axes: read from maps on a group, and as angles."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import MAP, check_group, check_same_type, check_tensor
from coattend.functional.layout import folded
from coattend.groups import FiniteGroup
from coattend.groups.orientation import MULTIPLES, Orientation, orientation_action


def orientation_field(
    x: Tensor, weight: Tensor, group: FiniteGroup, kind: Orientation = "axis", *, action: Tensor | None = None
) -> Tensor:
    """Read fields of vectors or axes from a map: ``v[f](u) = sum_c sum_g x[c, g](u) rho(g) weight[f, c]``.

    rho(g) is the matrix by which g moves a vector, or an axis (:func:`coattend.groups.orientation_action`), so that the
    fields turn with the image: ``v'(u) = rho(g) v(g^-1 u)``. Every linear map from the poses at a position to a vector
    that turns has this form.

    Args:
        x: a map (batch, channels, group, height, width).
        weight: (fields, channels, 2).
        group: the group of the third axis, which acts on the plane.
        kind: "vector" for (x, y), y up; "axis" for (cos 2a, sin 2a) times a strength.
        action: the matrices rho, if they are at hand.

    Returns (batch, fields * 2, height, width), the two numbers of a field after each other.
    """
    if action is None:
        check_group("orientation_field", group)
        check_tensor("orientation_field", "x", x, MAP, 5)
        check_tensor("orientation_field", "weight", weight, "(fields, channels, 2)", 3)
        if x.shape[1:3] != (weight.shape[1], group.order) or weight.shape[2] != 2:
            raise ValueError(
                f"orientation_field expects a map with {weight.shape[1]} channels and {group.order} poses for a weight "
                f"(fields, channels, 2) of {tuple(weight.shape)}, got {tuple(x.shape)}."
            )
        check_same_type("orientation_field", x, weight)
        action = torch.tensor(orientation_action(group, kind), device=weight.device)
    return F.conv2d(folded(x), orientation_filters(weight, action))


def orientation_filters(weight: Tensor, action: Tensor) -> Tensor:
    """Return the filters (fields * 2, channels * group, 1, 1) of the convolution that reads fields from planes."""
    bank = torch.einsum("gab,fcb->facg", action.to(weight.dtype), weight)
    return bank.flatten(2).flatten(0, 1)[:, :, None, None]


def orientation_angle(field: Tensor, kind: Orientation = "axis") -> Tensor:
    """Return the angles of fields in radians, counter-clockwise from the right.

    (batch, fields * 2, height, width) -> (batch, fields, height, width); from -pi to pi for vectors, from -pi/2 to pi/2
    for axes. How long the pair of numbers is, a measure of confidence, is ``field.unflatten(1, (-1, 2)).norm(dim=2)``.

    >>> orientation_angle(torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1)).rad2deg().item()
    45.0
    """
    check_tensor("orientation_angle", "field", field, "(batch, fields * 2, height, width)", 4)
    if field.shape[1] % 2 or kind not in MULTIPLES:
        raise ValueError(
            f"orientation_angle expects two numbers per field, kind 'vector' or 'axis', got {tuple(field.shape)} and "
            f"{kind!r}; pass the output of an OrientationField."
        )
    x, y = field.unflatten(1, (-1, 2)).unbind(dim=2)
    return torch.atan2(y, x) / MULTIPLES[kind]
