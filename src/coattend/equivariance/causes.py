"""Why a layer breaks equivariance, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from torch import Tensor, nn

from coattend.equivariance.error import relative_error, tensors_in
from coattend.equivariance.fields import Field, image_axes, move_poses
from coattend.equivariance.geometry import Window, window_of
from coattend.groups import FiniteGroup, transform_image
from coattend.nn import AttentionLayer, GroupConvTranspose2d, PoseConv2d


class Cause(Enum):
    """Reasons for which a layer is not equivariant."""

    STRIDE = "stride against size"
    ASYMMETRIC = "asymmetric pooling or padding"
    INTERPOLATION = "interpolation"
    PER_ORIENTATION = "per-orientation parameters"
    PLAIN_CONVOLUTION = "a plain convolution"
    ATTENTION = "attention of the wrong structure"
    OTHER_GROUP = "a layer over another group"
    FLATTENED = "positions or poses flattened into features"
    POSITION = "not symmetric in space"
    OWN = "poses and positions move differently"
    NOT_FINITE = "NaN or infinite values"


@dataclass(frozen=True)
class FaultyLayer:
    """A layer that does not commute with the group on the input that it received.

    ``unmatched`` is the first tensor received by a child layer that moved like no known layout: the fault is then in
    the layer's own code before that child.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    fields: tuple[Field, ...]
    group: FiniteGroup
    tol: float
    run: Callable[..., object]
    unmatched: Tensor | None = None


def explain(faulty: FaultyLayer, safe_sizes: Callable[[], str]) -> tuple[Cause, str]:
    """Return the cause and the remedy."""
    module, x = faulty.module, faulty.inputs[0]
    built_over = getattr(module, "group", None)
    if isinstance(module, PoseConv2d) and module.group.order == 1:
        return Cause.PLAIN_CONVOLUTION, (
            "it is built over the trivial group, its filters appear in one pose only; build it over "
            f"{faulty.group.name}."
        )
    if isinstance(built_over, FiniteGroup) and built_over != faulty.group:
        return Cause.OTHER_GROUP, (
            f"it is built over {built_over.name}, the check is over {faulty.group.name}; use one group "
            "throughout (two groups of equal order can number or move their elements differently)."
        )
    if isinstance(module, AttentionLayer):
        return Cause.ATTENTION, (
            f'{module} does not commute with {faulty.group.name}; use CoAttention with structure="group", which does '
            "for all weights."
        )
    if isinstance(module, GroupConvTranspose2d) and module.output_padding:
        return Cause.ASYMMETRIC, (
            f"output_padding={module.output_padding} adds rows and columns on one side only; leave it out, and choose "
            "kernel_size - stride even with half of it as padding: kernel_size=4, stride=2, padding=1 doubles maps."
        )
    window = window_of(module)
    if window is not None and x.ndim >= 4:
        window_cause = _window_cause(module, window, x, safe_sizes)
        if window_cause is not None:
            return window_cause
    if isinstance(module, _PADS) or (isinstance(module, nn.modules.conv._ConvNd) and _pads_unevenly(module)):
        return Cause.ASYMMETRIC, "it pads one side more than the other; pad all four sides equally."
    if isinstance(module, nn.modules.conv._ConvNd):
        return Cause.PLAIN_CONVOLUTION, (
            "its filters appear in one pose only; replace it by LiftingConv2d (images), GroupConv2d (maps) or "
            "ProjectionConv2d (maps to images)."
        )
    return _by_behaviour(faulty)


_PADS = (nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d)


def _window_cause(
    module: nn.Module, window: Window, x: Tensor, safe_sizes: Callable[[], str]
) -> tuple[Cause, str] | None:
    height, width = x.shape[-2:]
    left_over = [window.left_over(size) for size in (height, width)]
    if not any(left_over):
        return None
    if window.ceil_mode:
        return Cause.ASYMMETRIC, (
            f"ceil_mode completes the last window on one side only (size {height} x {width}, kernel {window.kernel}, "
            f"stride {window.stride}); switch it off and use a size that divides: {safe_sizes()}."
        )
    plain = isinstance(module, nn.modules.conv._ConvNd) and window.kernel > 1
    if plain:
        return None
    return Cause.STRIDE, (
        f"(size + 2*padding - kernel) % stride is {left_over[0]} and {left_over[1]} for {height} x {width} with kernel "
        f"{window.kernel}, stride {window.stride}, padding {window.padding}, so the windows are not symmetric "
        f"about the centre; {safe_sizes()}{_instead_of_stride(module, window)}."
    )


def _instead_of_stride(module: nn.Module, window: Window) -> str:
    """Return what can replace a strided convolution; nothing for a pooling layer, which is the replacement."""
    convolution = isinstance(module, (PoseConv2d, nn.modules.conv._ConvNd))
    return (
        ", or use stride 1 followed by SpatialMaxPool2d(2) on even sizes" if convolution and window.stride == 2 else ""
    )


def _pads_unevenly(module: nn.modules.conv._ConvNd) -> bool:
    reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    return module.padding == "same" and any(r % 2 for r in reach)


def _by_behaviour(faulty: FaultyLayer) -> tuple[Cause, str]:
    """Apply the action on poses and that on space separately, which works for unknown modules, too."""
    x, field, group = faulty.inputs[0], faulty.fields[0], faulty.group
    output = next(tensors_in(faulty.run(*faulty.inputs))) if faulty.unmatched is None else faulty.unmatched
    if output.ndim < image_axes(faulty.group):
        return Cause.FLATTENED, (
            "features that belong to poses or positions are mixed as if they were unrelated; pool over the group "
            "(GroupPool) and over positions first, or use ProjectionConv2d."
        )
    has_poses = field.kind in ("map", "poses", "channel-major fold", "pose-major fold")
    poses_commute = not has_poses or _commutes(faulty, lambda t, f, g: _move_poses_only(t, f, group, g))
    space_commutes = x.ndim < image_axes(group) or _commutes(faulty, lambda t, f, g: transform_image(t, group, g))
    if faulty.unmatched is not None:
        return Cause.OWN, _OWN_REMEDY
    if space_commutes and not poses_commute:
        return Cause.PER_ORIENTATION, (
            "it treats the poses of a channel differently; share parameters and statistics over the group axis "
            "(GroupBatchNorm2d and the other norms of coattend.nn, one bias per channel, CoAttention)."
        )
    if poses_commute and not space_commutes:
        return Cause.POSITION, (
            "it treats directions or positions differently (a filter in one pose, absolute coordinates, uneven "
            "padding or cropping); make it symmetric under the action of the group, or use GroupConv2d, which turns "
            "its filters."
        )
    return Cause.OWN, _OWN_REMEDY


_OWN_REMEDY = (
    "it has to satisfy f(g.x) = g.f(x) with (g.x)[h] = g.(x[g^-1 h]); see docs/conventions.md, and build it from the "
    "layers of coattend.nn where possible."
)


def _move_poses_only(x: Tensor, field: Field, group: FiniteGroup, g: int) -> Tensor:
    if field.kind == "image" or field.kind == "invariant" or field.over != (0,):
        return x
    if field.kind in ("map", "poses"):
        return field.move_poses(x, group, g)
    axes = (-1, group.order) if field.kind == "channel-major fold" else (group.order, -1)
    axis = 2 if field.kind == "channel-major fold" else 1
    return move_poses(x.unflatten(1, axes), group, g, axis).flatten(1, 2)


def _commutes(faulty: FaultyLayer, move: Callable[[Tensor, Field, int], Tensor]) -> bool:
    group, field = faulty.group, faulty.fields[0]
    straight = next(tensors_in(faulty.run(*faulty.inputs)))
    keeps_rank = straight.ndim == faulty.inputs[0].ndim
    for g in group.exact_elements:
        inputs = [move(t, f, g) for t, f in zip(faulty.inputs, faulty.fields, strict=True)]
        moved = next(tensors_in(faulty.run(*inputs)))
        expected = move(straight, field if keeps_rank else Field("image"), g)
        if not relative_error(moved, expected) <= faulty.tol:
            return False
    return True
