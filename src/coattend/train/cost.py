"""What a row of Table 1 would cost on a graphics card: an estimate, for rows that were not run."""

from __future__ import annotations

from functools import lru_cache

from coattend.data.catalog import DATASETS
from coattend.models import create_model
from coattend.nn.observe import multiply_adds
from coattend.train.recipes import get_recipe

SUSTAINED = 5e12  # floating-point operations a second; a quarter of what large cards promise in float32
OPERATIONS_PER_PRODUCT = 2 * 3  # a product and a sum; forward, and backward to the input and to the weights


@lru_cache
def gpu_hours(model: str) -> float:
    """Hours for the convolutions of one training by the paper's recipe; all else is taken to be free.

    >>> round(gpu_hours("p4_allcnn"), 1)
    6.5
    """
    recipe = get_recipe("paper", model)
    data = DATASETS[recipe.data]
    assert data.sizes is not None  # known of every dataset of the paper
    train, valid, _ = data.sizes
    images = train + valid if recipe.train_on == "train+valid" else train
    products = sum(multiply_adds(create_model(model), data.image_shape).values()) * images * recipe.epochs
    return products * OPERATIONS_PER_PRODUCT / SUSTAINED / 3600
