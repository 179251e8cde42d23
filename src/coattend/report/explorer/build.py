"""Build the page of the explorer: one HTML file with the networks, digits and code in it."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coattend._files import check_target, write_whole
from coattend.data import load_data
from coattend.export.input import input_of
from coattend.export.onnx_model import onnx_model
from coattend.models import EquivariantNetwork, model_entry, network_name
from coattend.models.classifier import Classifier, load_trained
from coattend.models.pretrained import pretrained_file
from coattend.nn import SliceCoAttentiveConv2d
from coattend.nn.observe import attended_convolutions, evaluating
from coattend.version import __version__

if TYPE_CHECKING:
    import onnx

SOURCES = Path(__file__).parent
# Concatenated in this order into one module.
SCRIPTS = ("pictures.js", "engine.js", "maps.js", "circle.js", "panel.js", "controls.js", "page.js")
RUNTIME = {"runtime_module": "ort.wasm.bundle.min.mjs", "runtime_binary": "ort-wasm-simd-threaded.wasm"}

PACKAGED = ("p4cnn", "a_p4cnn:attention=output")
DIGITS = tuple("0123456789")
# Test digits of mini that are upright, two of each class.
GALLERY = (737, 256, 451, 648, 347, 208, 742, 185, 453, 268, 518, 638, 22, 397, 233, 361, 287, 751, 157, 526)
FIRST = 742


def load_networks(files: Sequence[str | Path]) -> dict[str, Classifier]:
    """Load networks from run folders or files, by default the packaged ones, under titles that distinguish them."""
    files = files or [pretrained_file(name, "rotated-mnist") for name in PACKAGED]
    if len({Path(file).resolve() for file in files}) < len(files):
        raise ValueError(f"explore shows different networks side by side, got {', '.join(map(str, files))}.")
    loaded = [load_trained(file) for file in files]
    titles = [_title(classifier.network) for classifier in loaded]
    for additions in ([_options(classifier.network) for classifier in loaded], _differences(files)):
        pairs = zip(titles, additions, strict=True)
        names = [
            title if titles.count(title) == 1 or not addition else f"{title}, {addition}" for title, addition in pairs
        ]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, loaded, strict=True))


def _differences(files: Sequence[str | Path]) -> list[str]:
    """Return the parts of each path that are not in all of them."""
    parts = [Path(file).resolve().with_suffix("").parts for file in files]
    return ["/".join(part for part in own if not all(part in other for other in parts)) for own in parts]


def explorer_page(networks: dict[str, Classifier]) -> str:
    """Return the whole page: networks by title, a gallery of digits, and ONNX Runtime Web to run them."""
    side, classes = _common_kind(networks)
    described, packed = [], {}
    for number, (title, classifier) in enumerate(networks.items()):
        with evaluating(classifier):
            model = onnx_model(classifier, input_of(classifier), masks=True, responses=True)
        identity = f"network-{number}"
        described.append({"id": identity, "title": title, **_described(classifier, model)})
        packed[identity] = _text(gzip.compress(model.SerializeToString(), 9, mtime=0))
    contents = {
        "side": side,
        "networks": described,
        "gallery": _gallery(side) if classes == DIGITS else [],
        "first": GALLERY.index(FIRST),
    }
    templates = Environment(loader=FileSystemLoader(SOURCES), undefined=StrictUndefined, autoescape=False)
    return templates.get_template("page.html").render(
        titles=html.escape(" and ".join(networks)),
        style=_source("style.css"),
        code="\n".join(_source(name) for name in SCRIPTS),
        contents=json.dumps(contents).replace("<", "\\u003c"),  # so that nothing in it can end the script element
        networks=packed,
        version=__version__,
        runtime_version=json.loads(_asset("manifest.json"))["version"],
        **{key: _text(_asset(f"{file}.gz")) for key, file in RUNTIME.items()},
    )


def write_explorer(files: Sequence[str | Path], to: Path) -> None:
    """Write the page as one file that opens in a browser, without a server."""
    if to.suffix != ".html":
        raise ValueError(f"the explorer is one HTML file; expected --to something.html, got {to}.")
    check_target(to, overwrite=True)
    write_whole(to, explorer_page(load_networks(files)).encode())


def _common_kind(networks: dict[str, Classifier]) -> tuple[int, tuple[str, ...]]:
    if not networks:
        raise ValueError("explore expects at least one network, got none.")
    for title, classifier in networks.items():
        channels, height, width = classifier.image_shape
        if channels != 1 or height != width:
            raise ValueError(
                f"the explorer draws square pictures of one channel; {title} is for images of {channels} x {height} x "
                f"{width} (channels, height, width). `coattend attend` shows other images."
            )
    kinds = {(classifier.image_shape[1], classifier.classes) for classifier in networks.values()}
    if len(kinds) > 1:
        given = "; ".join(f"{size} x {size} in {len(classes)} classes" for size, classes in sorted(kinds))
        raise ValueError(
            f"explore shows networks of one image size and one set of classes, got {given}; show them separately."
        )
    return kinds.pop()


def _described(classifier: Classifier, model: onnx.ModelProto) -> dict[str, Any]:
    group = classifier.network.group
    assert group.planar is not None
    return {
        "about": _about(classifier),
        "classes": classifier.classes,
        "group": {
            "product": group.product.tolist(),
            "planar": group.planar.reshape(-1, 4).tolist(),
            "mirrors": bool(group.mirrored.any()),
            "elements": [group.describe(g) for g in group.elements],
        },
        "input": model.graph.input[0].name,
        "logits": model.graph.output[0].name,
        "layers": _layers(classifier, model),
    }


def _layers(classifier: Classifier, model: onnx.ModelProto) -> list[dict[str, Any]]:
    """Return a row per convolution: its response is the input of its attention, if it has one, else its output."""
    network = classifier.network
    image = next(network.parameters()).new_zeros(1, *classifier.image_shape)
    convolutions = attended_convolutions(network, image)
    layers: dict[str, dict[str, Any]] = {}
    for output in model.graph.output[1:]:
        kind, _, name = output.name.partition(":")
        axes = output.type.tensor_type.shape.dim
        if len(axes) != 5:  # the output of a projection has no poses
            continue
        layer = layers.setdefault(convolutions.get(name, name), {"mask": None})
        convolution = network.get_submodule(convolutions.get(name, name))
        sliced = isinstance(convolution, SliceCoAttentiveConv2d)
        layer |= {kind: output.name, "channels": convolution.out_channels if sliced else axes[1].dim_value}
    return [{"number": number, **layer} for number, layer in enumerate(layers.values(), start=1)]


def _about(classifier: Classifier) -> str:
    """Return the options that are not the model's own, its size and group, and what it was trained on."""
    network = classifier.network
    parameters = sum(parameter.numel() for parameter in network.parameters())
    facts = [_options(network), f"{parameters:,} parameters", network.group.name, classifier.provenance]
    return " · ".join(filter(None, facts))


def _options(network: EquivariantNetwork) -> str:
    return network_name(network).partition(":")[2].replace(",", ", ")


def _title(network: EquivariantNetwork) -> str:
    assert network.config is not None
    return model_entry(network.config.model).title


def _gallery(side: int) -> list[dict[str, Any]]:
    digits = load_data("mini", size=side).test
    return [{"label": int(digits.labels[i]), "pixels": _text(digits.images[i].numpy().tobytes())} for i in GALLERY]


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _source(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def _asset(name: str) -> bytes:
    path = SOURCES / "vendor" / name
    if not path.is_file():
        raise ValueError(
            f"the explorer's part {path} is missing; reinstall coattend, or in a clone run "
            "`python tools/fetch_explorer_assets.py`."
        )
    return path.read_bytes()
