"""Co-attentive equivariant neural networks for images without a preferred orientation."""

from coattend import functional as functional
from coattend import nn as nn
from coattend.equivariance import assert_equivariant as assert_equivariant
from coattend.equivariance import diagnose as diagnose
from coattend.equivariance import equivariance_error as equivariance_error
from coattend.groups import FiniteGroup as FiniteGroup
from coattend.groups import cyclic as cyclic
from coattend.groups import dihedral as dihedral
from coattend.groups import direct_product as direct_product
from coattend.groups import get_group as get_group
from coattend.nn import attention_masks as attention_masks

__version__ = "0.1.0"
