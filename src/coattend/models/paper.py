"""Table 1 of the paper as data: what was published about each network. It is silent on all others."""
# ruff: noqa: E501 (a table: one network, one line)

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One row of Table 1.

    - title: the network as the paper calls it
    - error, spread: the printed test error in percent
    - own_error: the authors' own run of a network by others, in parentheses there
    - count: the printed number of parameters
    - note: how that count is reached here
    """

    title: str
    error: float
    count: str
    own_error: float | None = None
    spread: float | None = None
    note: str = ""


TRUNCATED = "the paper truncates where others round"
DECYCLE = "19,880 is the count with DREN's decycle head; [CW16]'s p4-CNN has the max head: head=max, 24,680"
SLICE = "the count fits attention per filter slice; the paper's equations are attention=output"

TABLE_1 = {
    "z2cnn": Published("Z2CNN", 5.03, "21.75k", spread=0.002),
    "p4cnn": Published("p4-CNN", 2.28, "19.88k", spread=0.0004, note=DECYCLE),
    "a_p4cnn": Published("a-p4-CNN", 2.06, "20.76k", spread=0.0429, note=SLICE),
    "dren": Published("DREN", 1.78, "19.88k", own_error=1.99),
    "a_dren": Published("a-DREN", 1.674, "20.76k", note=SLICE),
    "dren_maxpool": Published("DRENMaxPool.", 1.56, "24.68k", own_error=1.60),
    "a_dren_maxpool": Published("a-DRENMaxPool.", 1.34, "25.68k", note=SLICE),
    "allcnn": Published("All-CNN", 9.44, "1.372M"),
    "p4_allcnn": Published("p4-All-CNN", 8.84, "1.371M"),
    "a_p4_allcnn": Published("a-p4-All-CNN", 7.68, "1.373M", note=TRUNCATED),
    "p4m_allcnn": Published("p4m-All-CNN", 7.59, "1.219M", note=TRUNCATED),
    "a_p4m_allcnn": Published("a-p4m-All-CNN", 6.92, "1.223M"),
    "resnet44": Published("ResNet44", 9.45, "2.639M", own_error=9.85),
    "p4m_resnet44": Published("p4m-ResNet44", 6.46, "2.623M", own_error=9.47),
    "a_p4m_resnet44": Published("a-p4m-ResNet44", 9.12, "2.632M", note="attend_shortcuts=false, 2,631,814, fits as well"),
    "nin": Published("NIN", 10.41, "0.967M", own_error=15.92),
    "r_nin_x4": Published("r-NINx4", 14.96, "0.958M"),
    "a_r_nin_x4": Published("a-r-NINx4", 13.67, "0.968M", note=SLICE),
    "resnet20": Published("ResNet20", 9.00, "0.335M", own_error=12.32),
    "r_resnet20_x4": Published("r-ResNet20x4", 12.31, "0.333M"),
    "a_r_resnet20_x4": Published("a-r-ResNet20x4", 11.32, "0.339M", note=SLICE),
}  # fmt: skip
