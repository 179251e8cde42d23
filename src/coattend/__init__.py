"""Co-attentive equivariant neural networks for images without a preferred orientation."""

import importlib
from types import ModuleType

from coattend import functional as functional
from coattend import models as models
from coattend import nn as nn
from coattend.equivariance import assert_equivariant as assert_equivariant
from coattend.equivariance import diagnose as diagnose
from coattend.equivariance import equivariance_error as equivariance_error
from coattend.export import freeze as freeze
from coattend.groups import FiniteGroup as FiniteGroup
from coattend.groups import cyclic as cyclic
from coattend.groups import dihedral as dihedral
from coattend.groups import direct_product as direct_product
from coattend.groups import get_group as get_group
from coattend.models import create_model as create_model
from coattend.models import is_exact as is_exact
from coattend.models import list_models as list_models
from coattend.models import load_model as load_model
from coattend.models import model_entry as model_entry
from coattend.models import push_model as push_model
from coattend.models import save_model as save_model
from coattend.nn import attention_masks as attention_masks
from coattend.version import __version__ as __version__

_LOADED_WHEN_USED = ("data", "export", "report", "train")  # they need libraries that the layers do not


def __getattr__(name: str) -> ModuleType:
    if name in _LOADED_WHEN_USED:
        return importlib.import_module(f"coattend.{name}")
    raise AttributeError(f"module 'coattend' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = {
        name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    packages = {"equivariance", "functional", "groups", "models", "nn", *_LOADED_WHEN_USED}
    return sorted((names - {"ModuleType"}) | packages | {"__version__"})
