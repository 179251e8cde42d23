"""What people look at: tables, curves, pictures and pages."""

from coattend.report.check import check_network as check_network
from coattend.report.console import comparison_table as comparison_table
from coattend.report.console import data_table as data_table
from coattend.report.console import equivariance_table as equivariance_table
from coattend.report.console import fetch_progress as fetch_progress
from coattend.report.console import models_table as models_table
from coattend.report.console import recipes_table as recipes_table
from coattend.report.console import reproduction_table as reproduction_table
from coattend.report.console import restriction_table as restriction_table
from coattend.report.console import working as working
from coattend.report.contributions import contribution_figure as contribution_figure
from coattend.report.envelope import Envelope as Envelope
from coattend.report.envelope import co_occurrence as co_occurrence
