"""Finite groups as integer tables, and how their elements move images, maps and filters."""

from coattend.groups.action import transform_image as transform_image
from coattend.groups.action import transform_map as transform_map
from coattend.groups.embedding import embedding as embedding
from coattend.groups.filter_action import FilterKind as FilterKind
from coattend.groups.filter_action import Filters as Filters
from coattend.groups.filter_action import Interpolation as Interpolation
from coattend.groups.filter_action import coset_turns as coset_turns
from coattend.groups.filter_action import filter_rings as filter_rings
from coattend.groups.filter_action import filter_turns as filter_turns
from coattend.groups.filter_action import fitting_filters as fitting_filters
from coattend.groups.finite_group import FiniteGroup as FiniteGroup
from coattend.groups.finite_group import Subgroup as Subgroup
from coattend.groups.named import cyclic as cyclic
from coattend.groups.named import dihedral as dihedral
from coattend.groups.named import direct_product as direct_product
from coattend.groups.named import get_group as get_group
from coattend.groups.named import register_group as register_group
from coattend.groups.orientation import Orientation as Orientation
from coattend.groups.orientation import orientation_action as orientation_action
from coattend.groups.rings import Rings as Rings
from coattend.groups.sequence import GroupSequence as GroupSequence
