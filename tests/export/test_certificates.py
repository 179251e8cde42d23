"""Certificates of files that were changed, damaged or made to harm: refused or found wrong, never a traceback."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import coattend as ca
from coattend.cli import main
from coattend.export import Certificate, check_certificate, export_file, export_frozen, export_onnx, export_pt2
from coattend.export.certificate import KEY
from coattend.export.measurement import digest_of
from coattend.export.onnx_check import onnx_digest
from coattend.models.pretrained import pretrained_file


def certificate_of(proto: onnx.ModelProto) -> dict[str, Any]:
    return json.loads(next(entry.value for entry in proto.metadata_props if entry.key == KEY))


def edited(source: Path, target: Path, **fields: object) -> Path:
    """The file with some fields of its certificate changed."""
    proto = onnx.load(source)
    (entry,) = [entry for entry in proto.metadata_props if entry.key == KEY]
    entry.value = json.dumps({**certificate_of(proto), **fields})
    onnx.save(proto, target)
    return target


def resealed(proto: onnx.ModelProto, target: Path) -> Path:
    """The file as one who knows how the digest is made would write it."""
    (entry,) = [entry for entry in proto.metadata_props if entry.key == KEY]
    certificate = Certificate.from_json(entry.value, "here")
    digest = certificate.sealed_digest(onnx_digest(proto))
    entry.value = json.dumps({**json.loads(entry.value), "digest": digest})
    target.write_bytes(proto.SerializeToString())
    return target


def test_a_graph_with_a_trigger_does_not_pass(onnx_file: Path, tmp_path: Path) -> None:
    """Nodes that negate the logits when a pixel exceeds 8, which no probe does, with constants as attributes."""
    proto = onnx.load(onnx_file)
    graph, logits = proto.graph, proto.graph.output[0].name
    for node in graph.node:
        node.output[:] = ["honest" if name == logits else name for name in node.output]
    graph.node.extend([
        helper.make_node("Constant", [], ["eight"], value_float=8.0),
        helper.make_node("ReduceMax", ["images"], ["brightest"], keepdims=0),
        helper.make_node("Greater", ["brightest", "eight"], ["triggered"]),
        helper.make_node("Neg", ["honest"], ["negated"]),
        helper.make_node("Where", ["triggered", "negated", "honest"], [logits]),
    ])  # fmt: skip
    onnx.save(proto, tmp_path / "trigger.onnx")
    checked = check_certificate(tmp_path / "trigger.onnx")
    assert checked is not None
    assert [claim.agrees for claim in checked.claims] == [False]


@pytest.mark.parametrize(
    "fields",
    [
        {"group": "z2", "equivariance": {"0": 0.0}},
        {"model": "p4m_allcnn"},
        {"parity": 1e9},
        {"options": {"width": 3}},
        {"image_shape": [1, 30, 30]},
        {"seed": 7},
    ],
)
def test_an_edited_certificate_fails(onnx_file: Path, tmp_path: Path, fields: dict) -> None:
    checked = check_certificate(edited(onnx_file, tmp_path / "edited.onnx", **fields))
    assert checked is not None
    assert [claim.agrees for claim in checked.claims] == [False]


@pytest.mark.parametrize(
    "fields",
    [
        {"group": None}, {"group": "C2000x"}, {"group": {}}, {"group": "z2"}, {"image_shape": "x"}, {"image_shape": []},
        {"image_shape": [1, 30000, 30000]}, {"image_shape": [1, -1, 28]}, {"image_shape": None}, {"probes": 0},
        {"probes": 10**7}, {"probes": "4"}, {"seed": -1}, {"equivariance": None}, {"equivariance": {}},
        {"equivariance": {"0": 0, "1": "x", "2": 0, "3": 0}}, {"reference": None}, {"reference": []},
        {"reference": [float("nan")]}, {"digest": None}, {"digest": []}, {"digest": "abc"}, {"parity": None},
        {"parity": float("nan")}, {"model": ["[/red]"]}, {"format": None}, {"format": "2"}, {"foreign": 1},
    ],
    ids=str,
)  # fmt: skip
def test_damaged_certificates_are_answered(onnx_file: Path, tmp_path: Path, fields: dict) -> None:
    with pytest.raises(ValueError, match=r"the certificate in .*damaged\.onnx is damaged.*export the network again"):
        check_certificate(edited(onnx_file, tmp_path / "damaged.onnx", **fields))


@pytest.mark.parametrize("text", ["null", "{}", "[]", "7", "{", "[" * 100_000, '{"image_shape": [1, 2, 3]}'])
def test_other_texts_are_answered(text: str) -> None:
    with pytest.raises(ValueError, match="the certificate in here is damaged"):
        Certificate.from_json(text, "here")


def test_newer_certificates_are_recognised(onnx_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a certificate of format 9.*upgrade the library"):
        check_certificate(edited(onnx_file, tmp_path / "newer.onnx", format=9))


def endless_loop() -> onnx.NodeProto:
    condition = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    inputs = [helper.make_tensor_value_info("round", TensorProto.INT64, []), condition]
    kept = [helper.make_node("Identity", ["going"], ["still"])]
    body = helper.make_graph(kept, "body", inputs, [helper.make_tensor_value_info("still", TensorProto.BOOL, [])])
    return helper.make_node("Loop", ["", "yes"], [], body=body)


def test_what_an_export_never_has_is_not_run(onnx_file: Path, tmp_path: Path) -> None:
    proto = onnx.load(onnx_file)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(endless_loop())
    with pytest.raises(ValueError, match="contains Loop, and an export has no loops"):
        check_certificate(resealed(proto, tmp_path / "loop.onnx"))
    proto = onnx.load(onnx_file)
    proto.graph.node[0].domain = "com.elsewhere"
    with pytest.raises(ValueError, match="contains com.elsewhere::"):
        check_certificate(resealed(proto, tmp_path / "foreign.onnx"))
    proto = onnx.load(onnx_file)
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ValueError, match=r"was not written by `coattend export`, or changed since"):
        check_certificate(resealed(proto, tmp_path / "outside.onnx"))


def test_graphs_that_cannot_run_are_answered(onnx_file: Path, tmp_path: Path) -> None:
    proto = onnx.load(onnx_file)
    proto.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ValueError, match="onnxruntime cannot run the graph .*export the network again"):
        check_certificate(resealed(proto, tmp_path / "broken.onnx"))
    proto = onnx.load(onnx_file)
    del proto.graph.output[:]
    with pytest.raises(ValueError, match="onnxruntime cannot run the graph"):
        check_certificate(resealed(proto, tmp_path / "silent.onnx"))


def test_certificates_of_the_former_format_are_verified_as_far_as_they_go(onnx_file: Path, tmp_path: Path) -> None:
    proto = onnx.load(onnx_file)
    weights = digest_of((t.name, numpy_helper.to_array(t)) for t in proto.graph.initializer)
    path = edited(onnx_file, tmp_path / "former.onnx", format=1, digest=weights)
    checked = check_certificate(path)
    assert checked is not None
    assert checked.claims[0].what == "digest of the weights only (older certificate)"
    assert [claim.agrees for claim in checked.claims] == [True] * 6
    shipped = check_certificate(pretrained_file("p4cnn", "rotated-mnist"))
    assert shipped is not None
    assert shipped.agrees


def test_a_certificate_prints_short(onnx_file: Path) -> None:
    checked = check_certificate(onnx_file)
    assert checked is not None
    assert repr(checked.certificate).startswith("Certificate(a_p4cnn over C4, images 1 x 28 x 28, largest difference ")
    assert len(repr(checked.certificate)) < 200


def verb(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["coattend", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("suffix", "export"), [(".pt2", export_pt2), (".pt", export_frozen)])
def test_torch_files_are_compared_and_not_run(
    network: ca.models.EquivariantNetwork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
    export: Any,
) -> None:
    path = tmp_path / f"m{suffix}"
    export(network, path)
    for loader in ("load", "export.load"):
        monkeypatch.setattr(f"torch.{loader}", lambda *_, **__: pytest.fail("the file was loaded"))
    assert verb(monkeypatch, "check", str(path)) == 0
    printed = capsys.readouterr().out
    assert "agrees" in printed
    assert "not run" in printed
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    weight = max(records, key=lambda name: len(records[name]))
    records[weight] = bytes([records[weight][0] ^ 1]) + records[weight][1:]
    with zipfile.ZipFile(tmp_path / f"changed{suffix}", "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    assert verb(monkeypatch, "check", str(tmp_path / f"changed{suffix}")) == 1
    (tmp_path / f"half{suffix}").write_bytes(path.read_bytes()[:5000])
    assert verb(monkeypatch, "check", str(tmp_path / f"half{suffix}")) == 2
    assert f"not a whole {suffix} file" in capsys.readouterr().err
    content = path.read_bytes()
    assert not any(place.encode() in content for place in (sys.prefix, str(Path(ca.__file__).parents[1])))


def test_exports_hold_no_path_of_this_machine(onnx_file: Path) -> None:
    content = onnx_file.read_bytes()
    places = (sys.prefix, str(Path(torch.__file__).parent), str(Path(ca.__file__).parents[1]), "site-packages")
    assert not any(place.encode() in content for place in places)


def test_exports_take_the_size_that_was_trained_on(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    model = ca.create_model("p4_allcnn:width=2")
    ca.save_model(model, tmp_path / "m.safetensors", metadata={"image_shape": "[3, 12, 12]"})
    certificate = export_file(tmp_path / "m.safetensors", tmp_path / "m.onnx")
    assert str(certificate).startswith("p4_allcnn for images 3 x 12 x 12, normalized\n")
    shape = onnx.load(tmp_path / "m.onnx").graph.input[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim[1:]] == [3, 12, 12]
    export_file(tmp_path / "m.safetensors", tmp_path / "again.safetensors")
    checked = check_certificate(tmp_path / "again.safetensors")
    assert checked is not None
    assert checked.certificate.image_shape == (3, 12, 12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, "cannot take images of 3 x 3 pixels .*choose another size"),
        ({"size": -1}, "1 to 2048 pixels high and wide, got -1"),
        ({"size": 0}, "1 to 2048 pixels high and wide, got 0"),
        ({"masks": True}, "are those of attention layers, and this network has none"),
    ],
)
def test_sizes_and_masks_that_are_not_there_are_answered(tmp_path: Path, options: dict, message: str) -> None:
    ca.save_model(ca.create_model("p4cnn:width=2"), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=message):
        export_file(tmp_path / "m.safetensors", tmp_path / "m.onnx", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("export", [export_onnx, export_pt2, export_frozen])
def test_what_is_no_network_or_size_is_refused(export: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="export expects a network, an nn.Module, got NoneType"):
        export(None, tmp_path / "m.x")
    with pytest.raises(ValueError, match=r"size must be a whole number.*got 1\.5"):
        export(ca.create_model("p4cnn:width=2").float().eval(), tmp_path / "m.x", size=1.5)


def test_maps_are_not_called_logits(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    dense = nn.Sequential(ca.nn.LiftingConv2d(1, 2, 3, "p4"), ca.nn.GroupPool("p4"))
    export_onnx(dense.eval(), tmp_path / "dense.onnx", size=6)
    assert [o.name for o in onnx.load(tmp_path / "dense.onnx").graph.output] == ["maps"]


def test_a_certificate_for_another_group_is_refused(tmp_path: Path) -> None:
    ca.save_model(ca.create_model("p4cnn:width=2").float(), tmp_path / "m.safetensors")
    export_file(tmp_path / "m.safetensors", tmp_path / "c.safetensors")
    metadata, _, _ = ca.models.read_model_file(tmp_path / "c.safetensors")
    certificate = {**json.loads(metadata["certificate"]), "group": "C4 clockwise"}
    network = ca.load_model(tmp_path / "m.safetensors")
    ca.save_model(network, tmp_path / "d.safetensors", metadata={"certificate": json.dumps(certificate)})
    with pytest.raises(ValueError, match=r"is about C4 clockwise, the network over C4"):
        check_certificate(tmp_path / "d.safetensors")
