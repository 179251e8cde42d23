"""The registry of export formats: one defined here works as those of the library do; earlier files are recognised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coattend as ca
from coattend.cli import main
from coattend.export import check_certificate, export_file, register_format
from coattend.export.certificate import Certificate
from coattend.export.formats import FORMATS, format_of
from coattend.export.input import input_of
from coattend.export.measurement import CertificateCheck, certify, digest_claim, without_gradients

EARLIER = Path(__file__).parent / "earlier"  # written before exported files had a registry and took pixels


def test_the_four_formats_of_the_library() -> None:
    assert list(FORMATS) == [".onnx", ".pt2", ".pt", ".safetensors"]
    assert all(form.check is not None for form in FORMATS.values())
    assert {name: getattr(format_of(Path(name)), "suffix", None) for name in ("a.onnx", "a.b.pt", "pt", ".pt")} == {
        "a.onnx": ".onnx", "a.b.pt": ".pt", "pt": None, ".pt": None,
    }  # fmt: skip


@pytest.fixture
def weights_format() -> Iterator[None]:
    """A format for NumPy, with a certificate beside the weights, and a longer suffix without one."""

    def content(path: Path) -> str:
        with np.load(path) as arrays:
            return str(sorted((name, arrays[name].sum()) for name in arrays if name != "certificate"))

    def check_npz(path: Path) -> CertificateCheck:
        with np.load(path) as arrays:
            certificate = Certificate.from_json(str(arrays["certificate"]), str(path))
        return CertificateCheck(path, certificate, (digest_claim(certificate, content(path)),), "only compared")

    @register_format(".npz", "weights for NumPy", options=("half",), check=check_npz)
    def write_npz(network: nn.Module, path: Path, *, half: bool = False, overwrite: bool = False) -> Certificate:
        arrays = {name: t.half().numpy() if half else t.numpy() for name, t in network.state_dict().items()}
        np.savez(path, **arrays)
        certificate = certify(network, without_gradients(network), input_of(network), content(path))
        np.savez(path, **arrays, certificate=np.array(certificate.to_json()))
        return certificate

    @register_format(".plain.npz", "weights alone")
    def write_plain(network: nn.Module, path: Path, *, overwrite: bool = False) -> None:
        np.savez(path, **{name: t.numpy() for name, t in network.state_dict().items()})

    yield
    FORMATS.remove(".npz")
    FORMATS.remove(".plain.npz")


@pytest.mark.usefixtures("weights_format")
def test_a_format_of_ones_own_is_exported_and_checked(
    network: ca.models.EquivariantNetwork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ca.save_model(network, tmp_path / "m.safetensors")
    measured = export_file(tmp_path / "m.safetensors", tmp_path / "m.npz", half=True, masks=False)
    assert isinstance(measured, Certificate)
    with np.load(tmp_path / "m.npz") as arrays:
        assert arrays["stages.0.layer1.conv.weight"].dtype == np.float16
    checked = check_certificate(tmp_path / "m.npz")
    assert checked is not None
    assert checked.agrees
    assert export_file(tmp_path / "m.safetensors", tmp_path / "m.plain.npz") is None
    with pytest.raises(ValueError, match=r"--half is an option of \.npz, got 'm\.plain\.npz'"):
        export_file(tmp_path / "m.safetensors", tmp_path / "m.plain.npz", half=True, overwrite=True)
    with pytest.raises(ValueError, match=r"files in the format \.plain\.npz carry no certificate"):
        check_certificate(tmp_path / "m.plain.npz")

    def verb(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["coattend", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert verb("export", str(tmp_path / "m.safetensors"), "--to", str(tmp_path / "n.npz")) == 0
    assert verb("check", str(tmp_path / "n.npz")) == 0
    assert "only compared" in capsys.readouterr().out
    with np.load(tmp_path / "n.npz") as arrays:
        changed = {name: arrays[name] for name in arrays}
    changed["stages.0.layer1.conv.weight"] = changed["stages.0.layer1.conv.weight"] + 1
    np.savez(tmp_path / "changed.npz", **changed)
    assert verb("check", str(tmp_path / "changed.npz")) == 1


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".safetensors"])
def test_files_of_earlier_versions_are_checked(suffix: str) -> None:
    checked = check_certificate(EARLIER / f"a_p4cnn{suffix}")
    assert checked is not None
    assert (checked.certificate.format, checked.certificate.input) == (2, "normalized")
    assert checked.agrees
    assert len(checked.claims) == (1 if suffix == ".pt2" else 6)


def test_an_earlier_frozen_network_still_loads_but_has_its_certificate_inside() -> None:
    torch.set_default_dtype(torch.float32)
    frozen = torch.load(EARLIER / "a_p4cnn.pt", weights_only=False)
    assert frozen(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    with pytest.raises(ValueError, match=r"a_p4cnn\.pt has no certificate that can be read without loading"):
        check_certificate(EARLIER / "a_p4cnn.pt")
