"""Which modules have no doctests to collect here."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore.append("src/coattend/functional/_kernels/triton.py")
if importlib.util.find_spec("ray") is None:
    collect_ignore.append("src/coattend/grid/cluster.py")
