"""Co-attentive equivariant neural networks for images without a preferred orientation."""

import importlib
from typing import TYPE_CHECKING, Any

from coattend.version import __version__ as __version__

if TYPE_CHECKING:
    from coattend import conversion as conversion
    from coattend import data as data
    from coattend import equivariance as equivariance
    from coattend import export as export
    from coattend import functional as functional
    from coattend import groups as groups
    from coattend import models as models
    from coattend import nn as nn
    from coattend import report as report
    from coattend import tasks as tasks
    from coattend import train as train
    from coattend.conversion import ConversionError as ConversionError
    from coattend.conversion import equivariantize as equivariantize
    from coattend.data import register_dataset as register_dataset
    from coattend.equivariance import assert_equivariant as assert_equivariant
    from coattend.equivariance import diagnose as diagnose
    from coattend.equivariance import equivariance_error as equivariance_error
    from coattend.equivariance import is_exact as is_exact
    from coattend.export import freeze as freeze
    from coattend.export import register_format as register_format
    from coattend.groups import FiniteGroup as FiniteGroup
    from coattend.groups import Rings as Rings
    from coattend.groups import cyclic as cyclic
    from coattend.groups import dihedral as dihedral
    from coattend.groups import direct_product as direct_product
    from coattend.groups import get_group as get_group
    from coattend.groups import register_group as register_group
    from coattend.models import create_model as create_model
    from coattend.models import list_models as list_models
    from coattend.models import load_model as load_model
    from coattend.models import model_entry as model_entry
    from coattend.models import push_model as push_model
    from coattend.models import register_model as register_model
    from coattend.models import save_model as save_model
    from coattend.models import turned as turned
    from coattend.nn.attention import register_attention as register_attention
    from coattend.nn.observe import attention_masks as attention_masks
    from coattend.tasks import register_task as register_task

# Loaded on first use: torch takes seconds, which `coattend --help` does not need, and Ctrl-C meanwhile is no error.
_PUBLIC = {
    "conversion": ("ConversionError", "equivariantize"),
    "data": ("register_dataset",),
    "equivariance": ("assert_equivariant", "diagnose", "equivariance_error", "is_exact"),
    "export": ("freeze", "register_format"),
    "functional": (),
    "groups": ("FiniteGroup", "Rings", "cyclic", "dihedral", "direct_product", "get_group", "register_group"),
    "models": (
        "create_model",
        "list_models",
        "load_model",
        "model_entry",
        "push_model",
        "register_model",
        "save_model",
        "turned",
    ),
    "nn": (),
    "nn.attention": ("register_attention",),
    "nn.observe": ("attention_masks",),
    "report": (),
    "tasks": ("register_task",),
    "train": (),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _PUBLIC:
            return importlib.import_module(f"coattend.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'coattend' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"coattend.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    packages = [module for module in _PUBLIC if "." not in module]
    return sorted([*packages, *_MODULE_OF, "__version__"])
