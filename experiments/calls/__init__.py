"""Wrong calls of the Python interface, one module per part of it."""

from experiments.calls import functions, layers, library
from experiments.calls.call import Call

PARTS: dict[str, list[Call]] = {**layers.PARTS, **functions.PARTS, **library.PARTS}
