"""What people look at: tables, and later curves, pictures and pages."""

from coattend.report.console import equivariance_table as equivariance_table
from coattend.report.console import models_table as models_table
