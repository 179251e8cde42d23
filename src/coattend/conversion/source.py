"""Networks to convert, as the command line names them: a model file, a name, or a function of a Python module."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple

from torch import nn

from coattend.data import Preprocessing
from coattend.models import create_model
from coattend.models.classifier import load_trained, weights_file
from coattend.models.registry import MODELS
from coattend.models.serialization import load_model_file


class Source(NamedTuple):
    """A network to convert; of a trained one also its preprocessing, and the name of its dataset."""

    network: nn.Module
    preprocessing: Preprocessing | None = None
    dataset: str | None = None


def load_source(source: str) -> Source:
    """Return the network of a run folder or a file, of a model's name, or that ``module:function`` returns.

    The module is imported as Python would from the current folder; the function takes no arguments.
    """
    if os.path.exists(source):
        path = weights_file(source)
        network, metadata, _ = load_model_file(path)
        if "preprocessing" not in metadata:
            return Source(network)
        trained = load_trained(path)
        return Source(trained.network, trained.preprocessing, trained.dataset)
    name, _, function = source.partition(":")
    if name in MODELS:
        return Source(create_model(source))
    if not function:
        raise ValueError(
            f"{source!r} is no file, run folder, model or module:function; expected one of these, such as "
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
    return Source(network)
