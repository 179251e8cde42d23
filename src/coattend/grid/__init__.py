"""Grids of runs in processes of their own: side by side on one machine, on Ray, or as a SLURM array."""

from coattend.grid.local import LocalPool as LocalPool
from coattend.grid.schedule import GridError as GridError
from coattend.grid.schedule import State as State
from coattend.grid.schedule import run_jobs as run_jobs
from coattend.grid.slurm import slurm_script as slurm_script
