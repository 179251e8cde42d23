"""Table 1 of the paper as data: every network, how it is built here, and what was published."""
# ruff: noqa: E501 (a table: one network, one line)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coattend.models.allcnn import AllCNN
from coattend.models.network import EquivariantNetwork
from coattend.models.nin import NIN
from coattend.models.resnet20 import ResNet20
from coattend.models.resnet44 import ResNet44
from coattend.models.rotated_mnist import RotatedMnistNet


@dataclass(frozen=True)
class ModelEntry:
    """One row of Table 1: the network, how it is built here, and what was published.

    ``error`` and ``spread`` are the printed test error in percent, ``own_error`` the authors' own run of somebody
    else's network (in parentheses there), ``published_count`` the printed number of parameters.
    """

    name: str
    title: str
    dataset: str
    family: type[EquivariantNetwork]
    options: Mapping[str, Any]
    error: float
    published_count: str
    own_error: float | None = None
    spread: float | None = None
    note: str = ""
    group: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.options["group"])

    @property
    def image_size(self) -> int:
        """Height and width of the data set's images."""
        return 28 if self.dataset == "rotated-mnist" else 32


MNIST, CIFAR = "rotated-mnist", "cifar10"
CLOCKWISE = "C4 clockwise"
DREN = {"group": CLOCKWISE, "width": 10, "dropout": 0.2, "norm_eps": 1e-3, "norm_momentum": 0.01}
TRUNCATED = "the paper truncates where others round"
DECYCLE = "19,880 is the count with DREN's decycle head; [CW16]'s p4-CNN has the max head: head=max, 24,680"
SLICE = "the count fits attention per filter slice; the paper's equations are attention=output"

ENTRIES = {
    entry.name: entry
    for entry in (
        ModelEntry("z2cnn", "Z2CNN", MNIST, RotatedMnistNet, {"group": "z2", "width": 20, "dropout": 0.3}, 5.03, "21.75k", spread=0.002),
        ModelEntry("p4cnn", "p4-CNN", MNIST, RotatedMnistNet, {"group": "p4", "width": 10}, 2.28, "19.88k", spread=0.0004, note=DECYCLE),
        ModelEntry("a_p4cnn", "a-p4-CNN", MNIST, RotatedMnistNet, {"group": "p4", "width": 10, "attention": "slice"}, 2.06, "20.76k", spread=0.0429, note=SLICE),
        ModelEntry("dren", "DREN", MNIST, RotatedMnistNet, DREN, 1.78, "19.88k", own_error=1.99),
        ModelEntry("a_dren", "a-DREN", MNIST, RotatedMnistNet, {**DREN, "attention": "slice"}, 1.674, "20.76k", note=SLICE),
        ModelEntry("dren_maxpool", "DRENMaxPool.", MNIST, RotatedMnistNet, {**DREN, "head": "max"}, 1.56, "24.68k", own_error=1.60),
        ModelEntry("a_dren_maxpool", "a-DRENMaxPool.", MNIST, RotatedMnistNet, {**DREN, "head": "max", "attention": "slice"}, 1.34, "25.68k", note=SLICE),
        ModelEntry("allcnn", "All-CNN", CIFAR, AllCNN, {"group": "z2", "width": 96, "init_std": 0.05}, 9.44, "1.372M"),
        ModelEntry("p4_allcnn", "p4-All-CNN", CIFAR, AllCNN, {"group": "p4", "width": 48}, 8.84, "1.371M"),
        ModelEntry("a_p4_allcnn", "a-p4-All-CNN", CIFAR, AllCNN, {"group": "p4", "width": 48, "attention": "output"}, 7.68, "1.373M", note=TRUNCATED),
        ModelEntry("p4m_allcnn", "p4m-All-CNN", CIFAR, AllCNN, {"group": "p4m", "width": 32}, 7.59, "1.219M", note=TRUNCATED),
        ModelEntry("a_p4m_allcnn", "a-p4m-All-CNN", CIFAR, AllCNN, {"group": "p4m", "width": 32, "attention": "output"}, 6.92, "1.223M"),
        ModelEntry("resnet44", "ResNet44", CIFAR, ResNet44, {"group": "z2", "width": (32, 64, 128)}, 9.45, "2.639M", own_error=9.85),
        ModelEntry("p4m_resnet44", "p4m-ResNet44", CIFAR, ResNet44, {"group": "p4m"}, 6.46, "2.623M", own_error=9.47),
        ModelEntry("a_p4m_resnet44", "a-p4m-ResNet44", CIFAR, ResNet44, {"group": "p4m", "attention": "output"}, 9.12, "2.632M", note="attend_shortcuts=false, 2,631,814, fits as well"),
        ModelEntry("nin", "NIN", CIFAR, NIN, {"group": "z2", "width": 192}, 10.41, "0.967M", own_error=15.92),
        ModelEntry("r_nin_x4", "r-NINx4", CIFAR, NIN, {"group": CLOCKWISE, "width": 96}, 14.96, "0.958M"),
        ModelEntry("a_r_nin_x4", "a-r-NINx4", CIFAR, NIN, {"group": CLOCKWISE, "width": 96, "attention": "slice"}, 13.67, "0.968M", note=SLICE),
        ModelEntry("resnet20", "ResNet20", CIFAR, ResNet20, {"group": "z2", "width": 16}, 9.00, "0.335M", own_error=12.32),
        ModelEntry("r_resnet20_x4", "r-ResNet20x4", CIFAR, ResNet20, {"group": CLOCKWISE, "width": 8}, 12.31, "0.333M"),
        ModelEntry("a_r_resnet20_x4", "a-r-ResNet20x4", CIFAR, ResNet20, {"group": CLOCKWISE, "width": 8, "attention": "slice"}, 11.32, "0.339M", note=SLICE),
    )
}  # fmt: skip
