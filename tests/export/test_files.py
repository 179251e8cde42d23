"""Export files: certificates that notice every change, errors that say what to do, nothing half-written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import numpy_helper
from torch import nn

import coattend as ca
from coattend.cli import main
from coattend.export import (
    Certificate,
    check_certificate,
    export_file,
    export_frozen,
    export_onnx,
    export_pt2,
    export_safetensors,
)
from coattend.export.certificate import KEY
from coattend.export.measurement import Claim


def claims_of(path: Path) -> tuple[Claim, ...]:
    checked = check_certificate(path)
    assert checked is not None
    return checked.claims


def test_the_certificate_tells_what_the_network_is_and_holds(onnx_file: Path) -> None:
    checked = check_certificate(onnx_file)
    assert checked is not None
    certificate = checked.certificate
    assert (certificate.model, certificate.options["width"], certificate.group) == ("a_p4cnn", 2, "C4")
    assert certificate.version == ca.__version__
    assert certificate.parity < 1e-5
    assert list(certificate.equivariance) == ["0", "1", "2", "3"]
    assert max(certificate.equivariance.values()) < 1e-5
    assert [claim.agrees for claim in checked.claims] == [True] * 6
    proto = onnx.load(onnx_file)
    assert {entry.key: entry.value for entry in proto.metadata_props}["note"] == "kept"
    assert proto.opset_import[0].version >= 18
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [p.name for p in onnx_file.parent.iterdir()] == ["model.onnx"]  # no external data beside it


@pytest.mark.parametrize("change", [1.0, 1e-7])
def test_a_changed_weight_fails(onnx_file: Path, tmp_path: Path, change: float) -> None:
    proto = onnx.load(onnx_file)
    weight = next(t for t in proto.graph.initializer if t.name.endswith("layer3.conv.weight"))
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] += np.float32(change)
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(proto, tmp_path / "changed.onnx")
    assert [claim.agrees for claim in claims_of(tmp_path / "changed.onnx")] == [False]  # and it is not run


def test_a_changed_graph_fails_although_its_weights_are_the_same(onnx_file: Path, tmp_path: Path) -> None:
    proto = onnx.load(onnx_file)
    next(node for node in proto.graph.node if node.op_type == "Relu").op_type = "Abs"
    onnx.save(proto, tmp_path / "changed.onnx")
    assert [claim.agrees for claim in claims_of(tmp_path / "changed.onnx")] == [False]


def test_a_network_that_is_not_equivariant_is_certified_as_such(tmp_path: Path) -> None:
    model = ca.create_model("p4_allcnn:width=2").float().eval()
    ca.save_model(model, tmp_path / "model.safetensors")
    certificate = export_safetensors(tmp_path / "model.safetensors", tmp_path / "certified.safetensors")
    assert certificate.equivariance["1"] > 1e-3
    assert all(claim.agrees for claim in claims_of(tmp_path / "certified.safetensors"))


def test_safetensors_carry_a_certificate(network: ca.models.EquivariantNetwork, tmp_path: Path) -> None:
    plain, certified = tmp_path / "plain.safetensors", tmp_path / "certified.safetensors"
    ca.save_model(network, plain, metadata={"provenance": "here"}, extra_tensors={"mean": torch.ones(2)})
    assert check_certificate(plain) is None
    export_safetensors(plain, certified)
    assert all(claim.agrees for claim in claims_of(certified))
    metadata, _, extra = ca.models.read_model_file(certified)
    assert metadata["provenance"] == "here"
    assert torch.equal(extra["mean"], torch.ones(2))
    for key in ("stages.1.layer3.conv.weight", "extra.mean"):
        with safetensors.safe_open(certified, framework="pt") as file:
            header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header.pop("digest")  # the file's own, which is verified when it is read
        tensors[key] = tensors[key] + 1e-6
        safetensors.torch.save_file(tensors, tmp_path / "changed.safetensors", header)
        assert not claims_of(tmp_path / "changed.safetensors")[0].agrees


def test_torch_files_carry_a_certificate(network: ca.models.EquivariantNetwork, tmp_path: Path) -> None:
    written = export_pt2(network, tmp_path / "model.pt2")
    extra = {"certificate.json": "", "metadata.json": ""}
    torch.export.load(str(tmp_path / "model.pt2"), extra_files=extra)
    assert json.loads(extra["metadata.json"])["coattend.input"] == "normalized"
    assert Certificate.from_json(extra["certificate.json"], "pt2") == written
    written = export_frozen(network, tmp_path / "model.pt")
    frozen = torch.load(tmp_path / "model.pt", weights_only=False)
    assert frozen.metadata == {"coattend.input": "normalized", "coattend.image_shape": "[1, 28, 28]"}
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("/extra/certificate.json"))
        assert Certificate.from_json(archive.read(record).decode(), "pt") == written


class Elsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ca.nn.LiftingConv2d(1, 2, 3, group="C8"), nn.ReLU(), ca.nn.GroupPool("C8"), nn.Flatten(), nn.Linear(98, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_ones_own_network_is_certified_too(tmp_path: Path) -> None:
    certificate = export_frozen(Elsewhere().float().eval(), tmp_path / "model.pt", size=9)
    assert (certificate.model, certificate.group, certificate.image_shape) == ("Elsewhere", "C8", (1, 9, 9))
    assert len(certificate.equivariance) == 8
    with pytest.raises(ValueError, match="how large are the images of Elsewhere"):
        export_frozen(Elsewhere().float().eval(), tmp_path / "other.pt")


def test_training_mode_and_types_are_refused(tmp_path: Path) -> None:
    model = ca.create_model("p4cnn:width=2").float()
    for export in (export_onnx, export_pt2, export_frozen):
        with pytest.raises(ValueError, match="is in training mode"):
            export(model, tmp_path / "model.x")
    with pytest.raises(ValueError, match=r"float32 parameters, got torch.float64; call network.float\(\)"):
        export_onnx(model.double().eval(), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="return one tensor, got list"):
        export_onnx(ca.create_model("p4cnn:width=2", features_only=True).float().eval(), tmp_path / "b.onnx", size=28)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("model.pth", {}, r"ends in .onnx, .pt2, .pt, .safetensors, got 'model.pth'"),
        ("model.pt", {"masks": True}, r"--masks is an option of \.onnx, got 'model\.pt'"),
        ("model.pt2", {"int8": True}, r"--int8 is an option of \.onnx, got"),
        ("model.onnx", {"data": "mini"}, "add --int8"),
        ("model.onnx", {"int8": True}, "a network without its preprocessing; expected a file written by `coattend"),
        ("model.onnx", {"colour": "red"}, "--colour is an option of no format, got 'model.onnx'"),
        ("model.onnx", {"int8": True, "size": 30}, "--int8 cannot be combined with --masks, --responses or --size"),
        ("model.safetensors", {"size": 30}, r"--size is an option of \.onnx, \.pt2, \.pt, got 'model\.safetensors'"),
        ("there.onnx", {}, "exists already; choose another name, or say overwrite"),
        ("folder", {}, "ends in .onnx"),
        ("folder.onnx", {}, "is a folder"),
        ("absent/model.onnx", {}, "no folder .*absent"),
        ("../../../../../../../proc/model.onnx", {}, "cannot write .*model.onnx"),
    ],
)
def test_mistakes_are_answered_and_leave_nothing(
    network: ca.models.EquivariantNetwork, tmp_path: Path, to: str, options: dict, message: str
) -> None:
    source = tmp_path / "source.safetensors"
    ca.save_model(network, source)
    (tmp_path / "there.onnx").write_text("precious")
    (tmp_path / "folder.onnx").mkdir()
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(ValueError, match=message):
        export_file(source, tmp_path / to, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "there.onnx").read_text() == "precious"


def test_a_failing_write_leaves_the_former_file(
    network: ca.models.EquivariantNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model.pt"
    target.write_text("former")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="cannot write .*No space left on device"):
        export_frozen(network, target, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]
    assert target.read_text() == "former"


def test_the_verbs_export_and_check(
    network: ca.models.EquivariantNetwork,
    onnx_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def verb(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["coattend", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    ca.save_model(network, tmp_path / "m.safetensors")
    assert verb("export", str(tmp_path / "m.safetensors"), "--to", str(tmp_path / "m.pt")) == 0
    assert "largest difference to the original" in capsys.readouterr().out
    assert verb("export", str(tmp_path / "m.safetensors"), "--to", str(tmp_path / "m.pt")) == 2
    assert verb("export", str(tmp_path), "--to", str(tmp_path / "n.pt")) == 2
    assert "is not a run folder; expected best.safetensors" in capsys.readouterr().err
    assert verb("check", str(onnx_file)) == 0
    assert "turn 270°" in capsys.readouterr().out
    proto = onnx.load(onnx_file)
    (entry,) = [entry for entry in proto.metadata_props if entry.key == KEY]
    entry.value = json.dumps({**json.loads(entry.value), "digest": "0" * 64})
    onnx.save(proto, tmp_path / "forged.onnx")
    assert verb("check", str(tmp_path / "forged.onnx")) == 1
    assert "DIFFERS" in capsys.readouterr().out
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "bare.onnx")
    assert verb("check", str(tmp_path / "bare.onnx")) == 2
    (tmp_path / "half.onnx").write_bytes(onnx_file.read_bytes()[:1000])
    assert verb("check", str(tmp_path / "half.onnx")) == 2
    assert "not a whole ONNX file" in capsys.readouterr().err
