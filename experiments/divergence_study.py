"""Are equivariant networks more prone to divergence, and does clipping the input help? ([RH20] section 4)

    python -m experiments.divergence_study [--steps 30]

The paper noticed that, with equal initialisation, rotation-equivariant networks diverge more easily than plain ones,
that outliers of the preprocessing contribute, and that clipping at the 99th percentile (|x| <= 2.3) and a lower
learning rate help. Here narrow ResNet20 (Z2), r-ResNet20x4 (p4) and a-r-ResNet20x4 with one block per stage and without
batch norms, which would hide the effect, are trained by SGD with momentum on noisy images with a few outliers,
for a range of learning rates, with and without clipping. The table shows the largest learning rate below which no
seed diverged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

import coattend as ca
from coattend.nn import GroupBatchNorm2d

NETWORKS = {
    "Z2": "resnet20:width=8,blocks=1",
    "p4": "r_resnet20_x4:width=4,blocks=1",
    "a-p4": "a_r_resnet20_x4:attention=output,width=4,blocks=1",
}
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
SEEDS = (0, 1, 2)
CLIP = 2.3


class NoNorm(nn.Module):
    """Replaces a batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x


def without_norms(model: nn.Module) -> nn.Module:
    """Remove the batch norms of a model in place, and return the model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, GroupBatchNorm2d):
                setattr(module, name, NoNorm())
    return model


def images(seed: int, outliers: float) -> tuple[Tensor, Tensor]:
    """Return standardised images of ten noisy prototypes with a few very large pixels, as per-pixel z-scores have."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (32,), generator=generator)
    prototypes = torch.randn(10, 3, 16, 16, generator=generator)
    x = prototypes[labels] + torch.randn(32, 3, 16, 16, generator=generator)
    large = torch.rand(x.shape, generator=generator) < 0.002
    return torch.where(large, outliers * x.sign(), x / x.std()), labels


def diverges(network: str, rate: float, clip: bool, seed: int, steps: int) -> bool:
    """Return whether the loss becomes infinite or ten times as large as at the start."""
    torch.manual_seed(seed)
    model = without_norms(ca.create_model(network))
    x, labels = images(seed, outliers=60.0)
    x = x.clamp(-CLIP, CLIP) if clip else x
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    start = None
    for _ in range(steps):
        loss = F.cross_entropy(model(x), labels)
        start = loss.item() if start is None else start
        if not torch.isfinite(loss) or loss.item() > 10 * max(start, 2.3):
            return True
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return False


def largest_safe_rate(network: str, clip: bool, steps: int) -> str:
    """Return the last learning rate before the first one at which a seed diverges."""
    safe = "none"
    for rate in RATES:
        if any(diverges(network, rate, clip, seed, steps) for seed in SEEDS):
            return safe
        safe = f"{rate:g}"
    return safe


def main(steps: int = 30) -> None:
    """Print the table.

    Args:
        steps: Training steps until a run counts as safe.
    """
    print("| network | parameters | largest safe learning rate | clipped at 2.3 |\n|---|---|---|---|")
    for title, name in NETWORKS.items():
        count = sum(p.numel() for p in ca.create_model(name).parameters())
        raw, clipped = (largest_safe_rate(name, clip, steps) for clip in (False, True))
        print(f"| {title} ({name}) | {count:,} | {raw} | {clipped} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
