"""Datasets: digits and nuclei inside the package, others on request, and the user's own images."""

from coattend.data import mini as mini  # first in listings, which have the order of registration

# isort: split
from coattend.data import cifar10 as cifar10
from coattend.data import galaxies as galaxies
from coattend.data import medmnist as medmnist
from coattend.data import mnist as mnist
from coattend.data import nuclei as nuclei
from coattend.data import rotated_mnist as rotated_mnist
from coattend.data.augmentation import Augmentation as Augmentation
from coattend.data.augmentation import make_augmentation as make_augmentation
from coattend.data.catalog import Available as Available
from coattend.data.catalog import DatasetEntry as DatasetEntry
from coattend.data.catalog import available as available
from coattend.data.catalog import fetch as fetch
from coattend.data.catalog import load_data as load_data
from coattend.data.catalog import register_dataset as register_dataset
from coattend.data.catalog import substitute as substitute
from coattend.data.dataset import DataError as DataError
from coattend.data.dataset import Dataset as Dataset
from coattend.data.dataset import Split as Split
from coattend.data.preprocessing import Preprocessing as Preprocessing
from coattend.data.preprocessing import make_preprocessing as make_preprocessing
from coattend.data.store import data_folder as data_folder
from coattend.data.streaming import StreamedSplit as StreamedSplit
from coattend.data.user_datasets import from_datasets as from_datasets
