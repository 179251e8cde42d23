"""Finite groups as integer tables, and how their elements move images, maps and filters."""

from coattend.groups.action import transform_image as transform_image
from coattend.groups.action import transform_map as transform_map
from coattend.groups.families import cyclic as cyclic
from coattend.groups.families import dihedral as dihedral
from coattend.groups.families import direct_product as direct_product
from coattend.groups.families import get_group as get_group
from coattend.groups.filters import Interpolation as Interpolation
from coattend.groups.filters import filter_turns as filter_turns
from coattend.groups.finite_group import FiniteGroup as FiniteGroup
from coattend.groups.finite_group import Subgroup as Subgroup
