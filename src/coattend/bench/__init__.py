"""Speed and memory as ratios measured in one run: what `coattend bench` shows."""

from coattend.bench.growth import growth as growth
from coattend.bench.lines import LIMITS as LIMITS
from coattend.bench.lines import Setting as Setting
from coattend.bench.lines import measured_lines as measured_lines
from coattend.bench.measure import Measurement as Measurement
from coattend.bench.measure import interleaved as interleaved
from coattend.bench.measure import saved_bytes as saved_bytes
from coattend.bench.results import plot as plot
from coattend.bench.results import table as table
from coattend.bench.results import write_csv as write_csv
from coattend.bench.run import run_benchmarks as run_benchmarks
