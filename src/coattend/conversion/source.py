"""Networks to convert, as the command line names them: a model file, a name, or a function of a Python module."""

from __future__ import annotations

import importlib
import os
import sys

from torch import nn

from coattend.models import create_model, load_model
from coattend.models.registry import MODELS


def load_source(source: str) -> nn.Module:
    """Return the network of a file that save_model wrote, of a model's name, or that ``module:function`` returns.

    The module is imported as Python would from the current folder; the function takes no arguments.
    """
    if os.path.isfile(source):
        return load_model(source)
    name, _, function = source.partition(":")
    if name in MODELS:
        return create_model(source)
    if not function:
        raise ValueError(
            f"{source!r} is no file, no model's name and no module:function; expected one of these, such as "
            "networks:resnet18 for the function resnet18() in networks.py."
        )
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise  # the module is there, and lacks another one
        raise ValueError(f"there is no module {name!r} to import, in {folder} or installed; got {source!r}.") from error
    finally:
        sys.path.remove(folder)
    if not callable(getattr(module, function, None)):
        raise ValueError(f"the module {name} has no function {function!r}; got {source!r}.")
    network = getattr(module, function)()
    if not isinstance(network, nn.Module):
        raise ValueError(f"{source} returned {type(network).__name__}, expected a torch.nn.Module.")
    return network
