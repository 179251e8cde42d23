"""Data sets: digits inside the package, rotated MNIST, MNIST and CIFAR-10 on request, and the user's own images."""

from coattend.data.augmentation import Augmentation as Augmentation
from coattend.data.augmentation import make_augmentation as make_augmentation
from coattend.data.dataset import DataError as DataError
from coattend.data.dataset import Dataset as Dataset
from coattend.data.dataset import Split as Split
from coattend.data.fetching import fetch as fetch
from coattend.data.fetching import substitute as substitute
from coattend.data.loading import Available as Available
from coattend.data.loading import available as available
from coattend.data.loading import load_data as load_data
from coattend.data.preprocessing import Preprocessing as Preprocessing
from coattend.data.preprocessing import make_preprocessing as make_preprocessing
from coattend.data.store import data_folder as data_folder
