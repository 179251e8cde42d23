"""The error of a network that cannot be converted."""

from __future__ import annotations


class ConversionError(ValueError):
    """A network cannot be converted: which layer or operation, why, and what to do."""

    def __init__(self, layer: str, reason: str, remedy: str) -> None:
        super().__init__(f"equivariantize cannot convert {layer}: {reason}; {remedy}.")
        self.layer = layer
        self.reason = reason
        self.remedy = remedy
