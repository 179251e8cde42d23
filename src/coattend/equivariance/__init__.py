"""Measure equivariance, assert it, and diagnose what breaks it."""

from coattend.equivariance.causes import Cause as Cause
from coattend.equivariance.diagnose import Diagnosis as Diagnosis
from coattend.equivariance.diagnose import Fault as Fault
from coattend.equivariance.diagnose import diagnose as diagnose
from coattend.equivariance.error import assert_equivariant as assert_equivariant
from coattend.equivariance.error import equivariance_error as equivariance_error
from coattend.equivariance.exactness import is_exact as is_exact
from coattend.equivariance.geometry import divides as divides
from coattend.equivariance.geometry import safe_sizes as safe_sizes
