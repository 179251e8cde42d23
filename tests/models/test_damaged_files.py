"""Files that are not what save_model wrote are refused before memory is spent on them, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.utils import prune

import coattend as ca
from coattend.models import read_model_file, serialization
from coattend.models.container import packed
from tests.models.test_serialization import content_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ca.save_model(ca.create_model("a_p4cnn:width=2").float(), tmp_path / "m.safetensors", metadata={"note": "a"})
    return tmp_path / "m.safetensors"


def rewritten(path: Path, remove: tuple[str, ...] = ("digest",), tensors: dict | None = None, **metadata: str) -> Path:
    """The file as one who knows the format, or an older version, would write it: without a digest."""
    old, weights = content_of(path)
    kept = {key: value for key, value in {**old, **metadata}.items() if key not in remove}
    safetensors.torch.save_file({**weights, **(tensors or {})}, path, kept)
    return path


@pytest.mark.parametrize(
    "options",
    [
        '{"width": 3000}',
        '{"width": 1000000000}',
        '{"width": 99999999999999999999}',
        '{"width": 0}',
        '{"width": {"a": 1}}',
        '{"blocks": 3}',
        '{"name": "z2cnn"}',
        '{"pretrained": "rotated-mnist"}',
        '{"features_only": true}',
        '{"relative": 5}',
        '{"relative": {"stages.0.layer2.conv": [0.0, "x"]}}',
        '{"dropout": "x"}',
        '{"diagonal": "x"}',
        '{"group": 7}',
        '{"group": {"product": 3, "planar": null, "name": "x"}}',
        "null",
        "7",
        "[1, 2]",
        "{",
        "[" * 100_000,
    ],
)
def test_hostile_options_are_refused_before_the_network_is_built(
    saved: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(*_: object) -> None:
        raise AssertionError("built before the tensors were compared")

    rewritten(saved, options=options)
    monkeypatch.setattr(serialization, "build_network", built, raising=False)
    with pytest.raises(ValueError, match=r"m\.safetensors .*The file is damaged"):
        ca.load_model(saved)


def test_endless_networks_are_refused(saved: Path) -> None:
    rewritten(saved, model="p4m_resnet44", options='{"blocks": 1000000000}')
    with pytest.raises(ValueError, match="blocks must be a whole number from 1 to 200"):
        ca.load_model(saved)


@pytest.mark.parametrize("key", ["model", "options", "format_version"])
def test_headers_that_lack_something_are_refused(saved: Path, key: str) -> None:
    with pytest.raises(ValueError, match=f"lacks {key}; the file is damaged"):
        ca.load_model(rewritten(saved, remove=("digest", key)))


def test_odd_headers_are_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match="gives 'x' as its format"):
        ca.load_model(rewritten(saved, format_version="x"))
    with pytest.raises(ValueError, match="unknown model 'nothing'"):
        ca.load_model(rewritten(saved, format_version="1", model="nothing"))
    with pytest.raises(ValueError, match=r"gives '\[1\]' as image_shape"):
        ca.load_model(rewritten(saved, model="a_p4cnn", image_shape="[1]"))


def test_a_network_is_compared_without_loading_the_compiler(saved: Path) -> None:
    code = f"import coattend, sys; coattend.load_model({str(saved)!r}); print('sympy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "False"  # it takes a second to import


@pytest.mark.parametrize("what", ["first bit", "last bit", "metadata", "name"])
def test_every_damage_is_found_by_the_digest(saved: Path, what: str) -> None:
    content = bytearray(saved.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    if what == "metadata":
        content = content.replace(b'"note":"a"', b'"note":"b"')
    elif what == "name":
        content = content.replace(b"layer3.norm.bias", b"layer3.norm.biaz")
    else:
        content[start if what == "first bit" else -1] ^= 1
    saved.write_bytes(content)
    with pytest.raises(ValueError, match="does not match the digest in its header"):
        read_model_file(saved)
    with pytest.raises(ValueError, match="does not match the digest in its header|layer3.norm.bias is missing"):
        ca.load_model(saved)


def test_files_without_a_digest_load_as_before(saved: Path) -> None:
    expected = ca.load_model(saved).state_dict()
    found = ca.load_model(rewritten(saved)).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("name", ["r_resnet20_x4:width=2,blocks=1", "r_nin_x4:width=6", "p4_allcnn:width=2"])
def test_options_that_files_of_earlier_versions_do_not_name_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = ca.create_model(name).eval()
    ca.save_model(model, tmp_path / "m.safetensors")
    options = {key: value for key, value in model.config.options.items() if key in ("group", "width", "blocks")}
    assert len(options) < len(model.config.options)
    again = ca.load_model(rewritten(tmp_path / "m.safetensors", options=json.dumps(options))).eval()
    assert again.config == model.config
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(x), model(x))


def test_equal_networks_make_equal_files(saved: Path, tmp_path: Path) -> None:
    network = ca.load_model(saved)
    notes = {letter: letter * 3 for letter in "fbdaec"}
    for name in ("a", "b", "c"):
        ca.save_model(network, tmp_path / name, metadata=notes)
    assert len({(tmp_path / name).read_bytes() for name in ("a", "b", "c")}) == 1
    content = (tmp_path / "a").read_bytes()
    length = int.from_bytes(content[:8], "little")
    keys = list(json.loads(content[8 : 8 + length])["__metadata__"])
    assert keys == sorted(keys)
    assert length % 8 == 0  # tensors stay aligned


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float8_e4m3fn])
def test_weights_in_types_that_hold_none_are_refused(saved: Path, dtype: torch.dtype) -> None:
    name = "stages.1.layer3.conv.weight"
    rewritten(saved, tensors={name: content_of(saved)[1][name].to(dtype)})
    with pytest.raises(ValueError, match=f"{name} is stored as .* instead of F16 or BF16 or F32 or F64"):
        ca.load_model(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(saved: Path, value: float) -> None:
    name = "stages.1.layer3.conv.weight"
    network = ca.load_model(saved)
    with torch.no_grad():
        network.get_parameter(name)[0, 0, 0, 0, 0] = value
    with pytest.raises(ValueError, match=f"{name} of a_p4cnn holds NaN or infinity"):
        ca.save_model(network, saved)
    rewritten(saved, tensors={name: network.get_parameter(name).detach()})
    with pytest.raises(ValueError, match=rf"{name} of .*m\.safetensors holds NaN or infinity"):
        ca.load_model(saved)


@pytest.mark.parametrize(
    ("of_file", "into", "message"),
    [
        ("p4cnn", "p4cnn:group=C4 clockwise", "group is C4 instead of C4 clockwise"),
        ("p4cnn:group=C8", "p4cnn:group=D4", "group is C8 instead of D4"),
        ("p4cnn:attention=output,group=D4", "p4cnn:attention=output,group=D4,structure=paper", "structure is group"),
        ("p4cnn:head=max", "p4cnn:head=mean", "head is max instead of mean"),
        ("p4cnn:relative=0-1", "p4cnn:relative=0-2", "relative is"),
        ("p4cnn", "dren", "group is C4 instead of C4 clockwise; norm_eps is 2e-05 instead of 0.001"),
    ],
)
def test_equal_shapes_do_not_make_equal_networks(of_file: str, into: str, message: str, tmp_path: Path) -> None:
    ca.save_model(ca.create_model(of_file, width=2), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=message):
        ca.load_model(tmp_path / "m.safetensors", into=ca.create_model(into, width=2))


def test_other_names_of_the_same_network_are_accepted(tmp_path: Path) -> None:
    ca.save_model(ca.create_model("p4cnn:width=2"), tmp_path / "m.safetensors")
    same = ca.create_model("a_p4cnn:width=2", attention="none", group=ca.cyclic(4), dropout=0.1)
    assert ca.load_model(tmp_path / "m.safetensors", into=same) is same
    with pytest.raises(ValueError, match="it is a RotatedMnistNet and not a AllCNN"):
        ca.load_model(tmp_path / "m.safetensors", into=ca.create_model("p4_allcnn:width=2"))
    with pytest.raises(ValueError, match="expects a network, got int"):
        ca.load_model(tmp_path / "m.safetensors", into=3)  # type: ignore[arg-type]


def test_the_trained_size_travels_with_the_network(saved: Path, tmp_path: Path) -> None:
    network = ca.load_model(rewritten(saved, image_shape="[1, 48, 48]"))
    assert network.image_shape == (1, 48, 48)
    ca.save_model(network, tmp_path / "again.safetensors")
    assert ca.load_model(tmp_path / "again.safetensors").image_shape == (1, 48, 48)


@pytest.mark.parametrize("how", ["weight norm", "pruned", "other head"])
def test_networks_that_could_not_be_loaded_are_not_saved(how: str, tmp_path: Path) -> None:
    model = ca.create_model("p4cnn:width=2")
    layer = model.get_submodule("stages.0.layer2.conv")
    if how == "weight norm":
        nn.utils.parametrizations.weight_norm(layer)
    elif how == "pruned":
        prune.l1_unstructured(layer, "weight", amount=0.5)
    else:
        model.head = nn.Flatten()
    with pytest.raises(ValueError, match=r"changed after create_model built it: .*remove_parametrizations"):
        ca.save_model(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
    if how == "weight norm":
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
    elif how == "pruned":
        prune.remove(layer, "weight")
    else:
        return
    ca.save_model(model, tmp_path / "m.safetensors")
    x = torch.randn(1, 1, 28, 28)
    assert torch.equal(ca.load_model(tmp_path / "m.safetensors").eval()(x), model.eval()(x))


def test_wrong_calls_are_answered(saved: Path, tmp_path: Path) -> None:
    model = ca.load_model(saved)
    for call in (lambda: ca.load_model(None), lambda: ca.save_model(model, None)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected the path of a file, got None"):
            call()
    with pytest.raises(ValueError, match="is a folder; expected a .safetensors file"):
        ca.load_model(tmp_path)
    with pytest.raises(ValueError, match="there is no file xxx"):
        ca.load_model("x" * 5000)
    with pytest.raises(ValueError, match="/proc/self/mem is not a complete safetensors file"):
        ca.load_model("/proc/self/mem")
    with pytest.raises(ValueError, match=r"metadata must map strings to strings, got 'a': 3"):
        ca.save_model(model, tmp_path / "n", metadata={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="metadata must map strings to strings, got 3"):
        ca.save_model(model, tmp_path / "n", metadata=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected the path of a file, got"):
        ca.save_model(model, "a\0b")
    with pytest.raises(ValueError, match="on the meta device and has no weights"):
        ca.save_model(ca.load_model(saved).to("meta"), tmp_path / "n")
    with pytest.raises(ValueError, match="cannot write /proc/x: No such file"):
        ca.save_model(model, "/proc/x")


@pytest.mark.parametrize("name", ["timeit:main", "os:getcwd", "this.x:f"])
def test_files_call_nothing_that_is_imported_already(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "called"
    options = {"group": "z2", "args": ["-n1", "-r1", "-s", f"open({str(marker)!r}, 'w')", "pass"]}
    header = {"format": "coattend-model", "format_version": "1", "coattend_version": "1", "model": name}
    Path("m.safetensors").write_bytes(packed({"a": torch.zeros(1)}, {**header, "options": json.dumps(options)}))
    with pytest.raises(ValueError, match="which is not in this folder"):
        ca.load_model("m.safetensors")
    assert not marker.exists()
    assert "this" not in sys.modules
