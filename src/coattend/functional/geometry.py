"""The geometry of a convolution: sizes are whole numbers, the same along all axes of an image."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from coattend.groups.axioms import whole_number

Size = int | tuple[int, int]  # one for both axes; pairs must be equal
LARGEST = 2**31 - 1
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class Geometry(NamedTuple):
    """Checked arguments of a convolution."""

    kernel_size: int
    stride: int
    padding: int
    dilation: int
    groups: int
    padding_mode: str

    @property
    def extent(self) -> int:
        """The number of pixels that the kernel covers along one axis."""
        return self.dilation * (self.kernel_size - 1) + 1

    def output_size(self, size: int) -> int:
        """Return the size of the result along an axis of a given size."""
        return (size + 2 * self.padding - self.extent) // self.stride + 1


def checked_geometry(
    owner: str,
    kernel_size: Size,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    padding_mode: str,
) -> Geometry:
    """Return the geometry, or raise a ValueError in the name of ``owner``, a function or a layer."""
    kernel_size = checked_size(owner, "kernel_size", kernel_size, 1)
    stride = checked_size(owner, "stride", stride, 1)
    dilation = checked_size(owner, "dilation", dilation, 1)
    groups = checked_integer(owner, "groups", groups, 1)
    if padding_mode not in PADDING_MODES:
        raise ValueError(
            f"{owner} expects padding_mode to be one of {', '.join(map(repr, PADDING_MODES))}, got {padding_mode!r}."
        )
    reach = dilation * (kernel_size - 1)
    if padding == "same":
        if reach % 2 or stride != 1:
            raise ValueError(
                f"{owner} cannot pad to the same size on all four sides alike with kernel_size={kernel_size}, "
                f"dilation={dilation}, stride={stride}; expected stride 1 and an odd kernel_size for "
                'padding="same", otherwise pass a whole number.'
            )
        padding = reach // 2
    padding = 0 if padding == "valid" else checked_size(owner, "padding", padding, 0)
    return Geometry(kernel_size, stride, padding, dilation, groups, padding_mode)


def checked_size(owner: str, name: str, value: object, minimum: int) -> int:
    """Return a whole number for both axes, given as one or as an equal pair."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        if value[0] != value[1]:
            raise ValueError(
                f"{owner} expects the same {name} along height and width, got {value!r}: unequal ones do not commute "
                "with quarter turns."
            )
        value = value[0]
    return checked_integer(owner, name, value, minimum)


def checked_integer(owner: str, name: str, value: object, minimum: int) -> int:
    """Return a whole number of any integer type as an int."""
    if type(value) is int and minimum <= value <= LARGEST:
        return value
    number = whole_number(value)
    if number is None or not minimum <= number <= LARGEST:
        raise ValueError(f"{owner} expects {name} to be a whole number from {minimum} to {LARGEST}, got {value!r}.")
    return number


def check_fits(owner: str, x: Tensor, geometry: Geometry) -> None:
    """Require an image that the kernel and the padding fit."""
    height, width = x.shape[-2:]
    padding, extent = geometry.padding, geometry.extent
    if min(height, width) + 2 * padding < extent:
        raise ValueError(
            f"{owner} has a kernel that covers {extent} pixels, larger than the padded image of "
            f"{height + 2 * padding} x {width + 2 * padding}; pass larger images or more padding."
        )
    if geometry.padding_mode not in ("reflect", "circular"):
        return
    limit = min(height, width) - (1 if geometry.padding_mode == "reflect" else 0)
    if padding > limit:
        raise ValueError(
            f"{owner} pads {padding} pixels in mode {geometry.padding_mode!r}, at most {limit} are possible for an "
            f"image of {height} x {width}; pad less or use padding_mode='zeros'."
        )
