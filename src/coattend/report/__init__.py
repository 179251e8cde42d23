"""Tables, curves, pictures and pages."""

from coattend.report.check import check_network as check_network
from coattend.report.contributions import contribution_figure as contribution_figure
from coattend.report.envelope import Envelope as Envelope
from coattend.report.envelope import co_occurrence as co_occurrence
