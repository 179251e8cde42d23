"""MedMNIST v2: twelve datasets of medical images of 28 x 28 pixels, from the ``.npz`` files of their authors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coattend.data.catalog import register_dataset
from coattend.data.dataset import DataError, Dataset
from coattend.data.npz import read_npz
from coattend.data.sources import Web
from coattend.data.store import StoredDataset

ADDRESS = "https://zenodo.org/records/10519652/files"
SIDE = 28
LARGEST = 1 << 28
BLOCK = 1 << 20
USUAL_FOLDER = str(Path("~/.medmnist").expanduser())  # of the medmnist package


@dataclass(frozen=True)
class Member:
    """One dataset: md5 of its file, channels, number of images to train, validate and test on, names of the classes."""

    md5: str
    channels: int
    sizes: tuple[int, int, int]
    classes: tuple[str, ...]


ORGANS = ("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left",
          "lung-right", "pancreas", "spleen")  # fmt: skip
MEMBERS = {
    "pathmnist": Member(
        "a8b06965200029087d5bd730944a56c1",
        3,
        (89_996, 10_004, 7_180),
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
    ),
    "chestmnist": Member(
        "02c8a6516a18b556561a56cbdd36c4a8",
        1,
        (78_468, 11_219, 22_433),
        (
            "atelectasis",
            "cardiomegaly",
            "effusion",
            "infiltration",
            "mass",
            "nodule",
            "pneumonia",
            "pneumothorax",
            "consolidation",
            "edema",
            "emphysema",
            "fibrosis",
            "pleural",
            "hernia",
        ),
    ),
    "dermamnist": Member(
        "0744692d530f8e62ec473284d019b0c7",
        3,
        (7_007, 1_003, 2_005),
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
    ),
    "octmnist": Member(
        "c68d92d5b585d8d81f7112f81e2d0842",
        1,
        (97_477, 10_832, 1_000),
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    ),
    "pneumoniamnist": Member("28209eda62fecd6e6a2d98b1501bb15f", 1, (4_708, 524, 624), ("normal", "pneumonia")),
    "retinamnist": Member("bd4c0672f1bba3e3a89f0e4e876791e4", 3, (1_080, 120, 400), ("0", "1", "2", "3", "4")),
    "breastmnist": Member("750601b1f35ba3300ea97c75c52ff8f6", 1, (546, 78, 156), ("malignant", "normal, benign")),
    "bloodmnist": Member(
        "7053d0359d879ad8a5505303e11de1dc",
        3,
        (11_959, 1_712, 3_421),
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
    ),
    "tissuemnist": Member(
        "ebe78ee8b05294063de985d821c1c34b",
        1,
        (165_466, 23_640, 47_280),
        (
            "collecting duct, connecting tubule",
            "distal convoluted tubule",
            "glomerular endothelial cells",
            "interstitial endothelial cells",
            "leukocytes",
            "podocytes",
            "proximal tubule segments",
            "thick ascending limb",
        ),
    ),
    "organamnist": Member("68e3f8846a6bd62f0c9bf841c0d9eacc", 1, (34_561, 6_491, 17_778), ORGANS),
    "organcmnist": Member("b9ceb9546e10131b32923c5bbeaea2b1", 1, (12_975, 2_392, 8_216), ORGANS),
    "organsmnist": Member("9ab87b696fb54e2a387ebe992d6ed5f1", 1, (13_932, 2_452, 8_827), ORGANS),
}


def read_files(name: str, folders: Sequence[Path]) -> Dataset | None:
    """Read and verify the file of a dataset in the first folder that has it."""
    path = next((folder / f"{name}.npz" for folder in folders if (folder / f"{name}.npz").is_file()), None)
    if path is None:
        return None
    member, digest = MEMBERS[name], _md5(path)
    if digest != member.md5:
        raise DataError(f"{path}: its md5 is {digest}, expected {member.md5}; download it again from {ADDRESS}.")
    content = read_npz(path)
    if len(content.classes) != len(member.classes) or len(content.parts) != 3:
        raise DataError(f"{path}: expected three splits of {len(member.classes)} classes; download it again.")
    train, valid, test = (content.parts[split] for split in ("train", "valid", "test"))
    provenance = f"MedMNIST v2 {name}, original (md5 verified), CC BY 4.0"
    return Dataset(name, train, valid, test, member.classes, provenance, content.task)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _stored(name: str) -> StoredDataset:
    return StoredDataset(
        name,
        partial(read_files, name),
        files=f"{name}.npz",
        sources=(Web(ADDRESS, (f"{name}.npz",), LARGEST),),
        subfolders=("medmnist", USUAL_FOLDER),
    )


STORED = {name: _stored(name) for name in MEMBERS}
for _name, _member in MEMBERS.items():
    register_dataset(
        _name,
        classes=_member.classes,
        image_shape=(_member.channels, SIDE, SIDE),
        sizes=_member.sizes,
        description="MedMNIST v2",
        fetch=STORED[_name].fetch,
        locate=STORED[_name].locate,
    )(STORED[_name].load)
