"""Tasks: what a network is trained for, as loss, scores and predictions."""

from coattend.tasks.classification import Classification as Classification
from coattend.tasks.classification import Classified as Classified
from coattend.tasks.multi_label import MultiLabel as MultiLabel
from coattend.tasks.regression import Regression as Regression
from coattend.tasks.segmentation import Segmentation as Segmentation
from coattend.tasks.task import TASKS as TASKS
from coattend.tasks.task import Answer as Answer
from coattend.tasks.task import Evaluation as Evaluation
from coattend.tasks.task import ScoreTable as ScoreTable
from coattend.tasks.task import Task as Task
from coattend.tasks.task import make_task as make_task
from coattend.tasks.task import register_task as register_task
