"""Conversion of networks that exist: plain networks made equivariant, with their weights or with new ones."""

from coattend.conversion.equivariantize import Equivariantized as Equivariantized
from coattend.conversion.equivariantize import equivariantize as equivariantize
from coattend.conversion.file import load_converted as load_converted
from coattend.conversion.file import save_converted as save_converted
from coattend.conversion.refusal import ConversionError as ConversionError
