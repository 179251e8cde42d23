"""Which relative poses occur together: how much each contributes, what it costs, which to keep."""

from coattend.cooccurrence.choice import choose_poses as choose_poses
from coattend.cooccurrence.measure import MEASURES as MEASURES
from coattend.cooccurrence.measure import Measure as Measure
from coattend.cooccurrence.measure import Probe as Probe
from coattend.cooccurrence.measure import contributions as contributions
from coattend.cooccurrence.operations import operations as operations
