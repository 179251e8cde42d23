"""A short training of a network that is trained already."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from coattend.data import make_augmentation
from coattend.models import EquivariantNetwork
from coattend.train import Recipe
from coattend.train.batches import Examples, hash_seed, shuffled_batches
from coattend.train.divergence import check_loss
from coattend.train.optimizer import make_optimizer, set_learning_rate

LEARNING_RATE = 0.3  # of the recipe's own: the weights are good already


def fine_tune(network: EquivariantNetwork, recipe: Recipe, examples: Examples, epochs: int, seed: int = 0) -> None:
    """Train on by the recipe the network was trained with, for a few epochs of one falling learning rate.

    The same seed gives the same weights. A short run in memory: stopped, it starts from the beginning.
    """
    recipe = replace(recipe, lr=recipe.lr * LEARNING_RATE, schedule="one-cycle", warmup=0.1, epochs=max(1, epochs))
    optimizer = make_optimizer(network, recipe)
    augment = make_augmentation(recipe.augmentation)
    steps = -(-len(examples) // recipe.batch)
    network.train()
    for epoch in range(epochs):
        torch.manual_seed(hash_seed(seed, epoch, 1))
        chance = torch.Generator(examples.images.device).manual_seed(hash_seed(seed, epoch, 500))
        batches = shuffled_batches(examples, recipe.batch, seed, epoch, rank=0, world=1)
        for number, (images, labels, _) in enumerate(batches):
            step = epoch * steps + number
            set_learning_rate(optimizer, recipe.learning_rate_factor(step, epochs * steps))
            images = augment(images, chance)
            loss = F.cross_entropy(network(images), labels, label_smoothing=recipe.label_smoothing)
            check_loss(loss.item(), recipe, step, epoch, network, images)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if recipe.clip_gradients is not None:
                torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_gradients)
            optimizer.step()
    network.eval()
