"""Make a trained network smaller: choose relative poses, cut, fine-tune, compare."""

from coattend.restrict.fine_tuning import fine_tune as fine_tune
from coattend.restrict.picture import contribution_figure as contribution_figure
from coattend.restrict.program import Look as Look
from coattend.restrict.program import Restriction as Restriction
from coattend.restrict.program import restrict_trained as restrict_trained
from coattend.restrict.table import restriction_table as restriction_table
