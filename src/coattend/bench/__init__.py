"""Speed and memory as ratios measured in one run: what ``coattend bench`` prints."""

from coattend.bench.lines import Setting as Setting
from coattend.bench.lines import measured_lines as measured_lines
from coattend.bench.networks import plain_network as plain_network
from coattend.bench.networks import random_batch as random_batch
from coattend.bench.networks import without_dropout as without_dropout
from coattend.bench.process import prepare_process as prepare_process
from coattend.bench.results import read_csv as read_csv
from coattend.bench.results import write_csv as write_csv
