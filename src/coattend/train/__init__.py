"""Recipes, the training loop, run folders, comparisons and the ledger."""

from coattend.models.classifier import load_trained as load_trained
from coattend.train.comparison import Comparison as Comparison
from coattend.train.comparison import compare as compare
from coattend.train.ledger import collect as collect
from coattend.train.ledger import write_ledger as write_ledger
from coattend.train.loop import train as train
from coattend.train.optimizer import parameter_groups as parameter_groups
from coattend.train.outcome import headline as headline
from coattend.train.recipe import Recipe as Recipe
from coattend.train.recipe import changed as changed
from coattend.train.recipes import PAPER as PAPER
from coattend.train.recipes import get_recipe as get_recipe
from coattend.train.reproduction import Reproduction as Reproduction
from coattend.train.reproduction import reproductions as reproductions
from coattend.train.run_folder import RunError as RunError
from coattend.train.run_folder import RunFolder as RunFolder
