"""Models, files, exports, data and training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coattend
import coattend.data
import coattend.export
import coattend.train
from experiments.calls.call import Call, with_wrong_arguments, with_wrong_tensors, wrong

ca: Any = coattend  # called wrongly on purpose: its types would be in the way
data: Any = coattend.data
export: Any = coattend.export
training: Any = coattend.train

NAN = float("nan")
SMALL = "p4cnn:width=1"
IMAGES = torch.zeros(12, 1, 28, 28, dtype=torch.uint8)
LABELS = torch.arange(12) % 3


def _network() -> Any:
    return ca.create_model(SMALL).eval()


def _models() -> Iterator[Call]:
    for name in (None, 3, "", "x", "p4cnn:width", "p4cnn:width=x", "p4cnn:wdith=2", "p4cnn:width=99999999"):
        yield wrong(f"create_model({name!r})", ca.create_model, name)
    spoilt: dict[str, tuple[Any, ...]] = {
        "width": (0, -1, 1.5, None, "x", 10**9),
        "group": (None, "x", 3, "C1000000"),
        "num_classes": (0, -1, None, "x", 10**12),
        "in_channels": (0, None, "x"),
        "attention": ("x", 3),
        "structure": ("x", 3),
        "position": ("x",),
        "head": ("x", None),
        "dropout": ("x", -1, 2, NAN),
        "diagonal": ("x",),
        "pretrained": (5, "x", ""),
        "relative": (5, "x", {"x": (0,)}, {"stages.0.layer2.conv": (0.0, 1.0)}),
    }
    for key, values in spoilt.items():
        for value in values:
            yield wrong(f"create_model(a_p4cnn, {key}={value!r})", ca.create_model, "a_p4cnn", **{key: value})
    for name in (None, 3, "x"):
        yield wrong(f"model_entry({name!r})", ca.model_entry, name)
    for pattern in (None, 3):
        yield wrong(f"list_models({pattern!r})", ca.list_models, pattern)
    for size in (-1, 0, "x", None, 1.5, (28,)):
        yield wrong(f"is_exact(size={size!r})", ca.is_exact, _network(), size)
    yield wrong("is_exact(None)", ca.is_exact, None, 28)
    yield from with_wrong_tensors("a network", _network(), torch.randn(2, 1, 28, 28))
    yield wrong("a network on 5 x 5", _network(), torch.randn(1, 1, 5, 5))
    for state in (None, {}, {"x": torch.zeros(3)}, 3, {"x": "y"}):
        yield wrong(f"convert_state_dict({state})", ca.models.convert_state_dict, state, _network(), {})


def _files() -> Iterator[Call]:
    nowhere = Path("nowhere") / "x.safetensors"
    for path in (None, 3, "", "nowhere.safetensors", ".", "x" * 5000, "a\0b", "hf://", "/proc/self/mem"):
        yield wrong(f"load_model({str(path)[:20]!r})", ca.load_model, path)
        yield wrong(f"read_model_file({str(path)[:20]!r})", ca.models.read_model_file, path)
        yield wrong(f"load_trained({str(path)[:20]!r})", training.load_trained, path)
    for target in (None, 3, "", ".", nowhere, "/proc/x", "a\0b"):
        yield wrong(f"save_model to {str(target)[:20]!r}", ca.save_model, _network(), target)
    for model in (None, torch.nn.Conv2d(1, 1, 1), 3, _network().to("meta")):
        yield wrong(f"save_model({type(model).__name__})", ca.save_model, model, "x.safetensors")
    for metadata in (3, {"a": 3}, {3: "a"}):
        yield wrong(f"save_model(metadata={metadata})", ca.save_model, _network(), "x.safetensors", metadata=metadata)
    for into in (3, torch.nn.Conv2d(1, 1, 1), "x"):
        yield wrong(f"load_model(into={type(into).__name__})", _loaded_into, into)
    for network in (None, 3, torch.nn.Linear(2, 2)):
        name = type(network).__name__
        yield wrong(f"export_onnx({name})", export.export_onnx, network, "x.onnx")
        yield wrong(f"export_pt2({name})", export.export_pt2, network, "x.pt2")
        yield wrong(f"export_frozen({name})", export.export_frozen, network, "x.pt")
        if not isinstance(network, torch.nn.Module):
            yield wrong(f"freeze({name})", ca.freeze, network)
    for size in (0, -1, "x", 1.5):
        yield wrong(f"export_frozen(size={size})", export.export_frozen, _network(), "x.pt", size=size)
    yield wrong("export_frozen to a folder", export.export_frozen, _network(), ".")
    yield wrong("export_safetensors(None)", export.export_safetensors, None, "x.safetensors")


def _loaded_into(module: object) -> object:
    ca.save_model(_network(), "whole.safetensors")
    return ca.load_model("whole.safetensors", into=module)


def _data() -> Iterator[Call]:
    for name in (None, 3, "", "x", "nowhere/x", "mnsit", "x" * 5000, "a\0b"):
        yield wrong(f"load_data({str(name)[:20]!r})", data.load_data, name)
    for size in (0, -1, "x", 1.5, 10**6):
        yield wrong(f"load_data(mini, size={size!r})", data.load_data, "mini", size=size)
    yield wrong("load_data(mini, fit=x)", data.load_data, "mini", size=20, fit="x")
    for steps in (None, "x", ["x"], [3], ["scalar", "scalar:x"], 3):
        yield wrong(f"make_preprocessing({steps!r})", data.make_preprocessing, steps)
        yield wrong(f"make_augmentation({steps!r})", data.make_augmentation, steps)
    for clip in (-1, NAN, "x"):
        yield wrong(f"make_preprocessing(clip={clip!r})", data.make_preprocessing, ["scalar"], clip)
    yield wrong("preprocessing before it is fitted", data.make_preprocessing(["scalar"]), IMAGES)
    for what, images in {"None": None, "3-d": IMAGES[0], "numpy": np.zeros(3)}.items():
        yield wrong(f"Preprocessing.fit({what})", data.make_preprocessing(["scalar"]).fit, images)
    splits: dict[str, tuple[Any, Any]] = {
        "None": (None, None),
        "floats": (IMAGES.float(), LABELS),
        "labels short": (IMAGES, LABELS[:3]),
        "labels float": (IMAGES, LABELS.float()),
        "3-d": (IMAGES[:, 0], LABELS),
        "numpy": (IMAGES.numpy(), LABELS.numpy()),
    }
    for what, arguments in splits.items():
        yield wrong(f"Split of {what}", data.Split, *arguments)
    split = data.Split(IMAGES, LABELS)
    yield wrong("Dataset with too few classes", data.Dataset, "x", split, split, split, ("a",), "here")
    yield wrong("Dataset of None", data.Dataset, "x", None, split, split, ("a", "b", "c"), "here")


def _training() -> Iterator[Call]:
    spoilt: dict[str, tuple[Any, ...]] = {
        "lr": (-1.0, NAN, "x", None),
        "momentum": (5.0, -1.0, NAN),
        "eps": (-1.0, NAN),
        "epochs": (0, -1, 1.5, None, "x"),
        "batch": (0, -1, None, 1.5),
        "label_smoothing": (2.0, -1.0, NAN),
        "clip_gradients": (-1.0, 0.0, NAN),
        "train_images": (-5, 0),
        "valid_images": (-5,),
        "test_images": (-1, 0),
        "warmup": (2.0, -1.0, NAN),
        "gamma": (NAN, -1.0),
        "bias_lr": (NAN, -1.0),
        "weight_decay": (-1.0, NAN),
        "milestones": ((2.0,), (NAN,), 3),
        "keep_poses": (0, 2, NAN),
        "optimizer": ("x", None),
        "schedule": ("x",),
        "precision": ("8-true", None),
        "train_on": ("x",),
        "test_every": (-1,),
        "equivariance_every": (-1,),
        "explode": (NAN, -1.0),
        "clip": (-1.0, NAN),
    }
    yield from with_wrong_arguments("Recipe", training.Recipe, {"name": "x"}, spoilt)
    for setting in ("x", "x=1", "epochs=x", "epochs=", "=3", "lr=nan", "epochs=1e9", "clip=x"):
        yield wrong(f"changed({setting})", training.changed, training.Recipe("x"), [setting])
    for name in (None, 3, "x", ""):
        yield wrong(f"get_recipe({name!r})", training.get_recipe, name, SMALL)
    few = training.Recipe("x", epochs=1, train_images=8, valid_images=4, test_images=4, equivariance_every=0)
    runs: dict[str, dict[str, Any]] = {
        "model None": {"model_name": None},
        "model x": {"model_name": "x"},
        "recipe None": {"recipe": None},
        "recipe name": {"recipe": "quick"},
        "seed text": {"seed": "x"},
        "seed None": {"seed": None},
        "seed huge": {"seed": 2**80},
        "seed negative": {"seed": -(2**70)},
        "root None": {"root": None},
        "root file": {"root": Path("/etc/passwd")},
        "accelerator x": {"accelerator": "x"},
        "accelerator cuda": {"accelerator": "cuda"},
        "devices 0": {"devices": 0},
        "devices -1": {"devices": -1},
        "devices text": {"devices": "x"},
        "nodes 0": {"nodes": 0},
        "augmentation x": {"recipe": training.Recipe("x", augmentation=("x",), epochs=1)},
        "preprocessing x": {"recipe": training.Recipe("x", preprocessing=("x",), epochs=1)},
        "data x": {"recipe": training.Recipe("x", data="x", epochs=1)},
    }
    for what, arguments in runs.items():
        right = {"model_name": SMALL, "recipe": few, "seed": 0, "root": Path(tempfile.gettempdir()) / "nowhere"}
        yield wrong(f"train with {what}", training.train, **{**right, **arguments})
    for models in (None, (), ("x",), (SMALL, SMALL)):
        yield wrong(f"compare({models})", training.compare, models, (0,), "quick", Path("runs"))
    for seeds in (None, (), ("x",), (0, 0)):
        yield wrong(f"compare(seeds={seeds})", training.compare, (SMALL, "z2cnn:width=1"), seeds, "quick", Path("runs"))


PARTS = {"models": list(_models()), "files": list(_files()), "data": list(_data()), "training": list(_training())}
