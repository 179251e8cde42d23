"""How changes of shape are converted, whether a layer or a function makes them."""

from __future__ import annotations

from torch import nn

from coattend.conversion.step import Step
from coattend.conversion.values import IMAGE_AXES, Form, Value


def reshaped(step: Step, layer: nn.Module | None = None) -> Value:
    """Reshape what has no positions, or the axes before them; what mixes positions with others has a frame."""
    x = step.x
    if x.axes is None or (x.form is Form.OWN and x.has_positions):
        return step.verbatim(None if x.axes is None or step.shape != x.shape else x.axes, layer)
    keeps_batch = x.axes[0] == "b" and step.shape[:1] == x.shape[:1]
    others = len(step.shape) - 1
    if keeps_batch and not x.has_positions:
        is_image = len(step.shape) == 4 and step.shape[2:] == (1, 1)
        return step.verbatim(IMAGE_AXES if is_image else ("b", *("c",) * others), layer)
    if keeps_batch and x.axes[-2:] == ("h", "w") and step.shape[-2:] == x.shape[-2:] and others > 1:
        return step.verbatim(("b", *("c",) * (others - 2), "h", "w"), layer)
    return step.own_frame(None, "it mixes positions with other axes", layer)
