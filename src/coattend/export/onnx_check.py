"""ONNX files checked: their certificate is measured again with onnxruntime."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend._words import install
from coattend.export.certificate import KEY, Certificate
from coattend.export.measurement import CertificateCheck, Network, check, digest_of

if TYPE_CHECKING:
    import onnx


def check_onnx(path: Path) -> CertificateCheck:
    """Measure again, with onnxruntime, what the certificate of an ONNX file claims; no code of the network is used."""
    onnx = require_onnx()
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected an .onnx file written by `coattend export`.")
    content = path.read_bytes()
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError has no public name
        raise ValueError(f"{path} is not a whole ONNX file ({error}); copy or export it again.") from error
    certificates = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    if not certificates:
        raise ValueError(f"{path} has no certificate; expected a file written by `coattend export`.")
    certificate = Certificate.from_json(certificates[0], str(path))
    _require_plain(proto, path)
    digest = onnx_digest(proto) if certificate.format > 1 else _weight_digest(proto)
    return check(path, certificate, runner(content), digest)


def _require_plain(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse what no export contains: loops can run forever, and other files can be read."""
    nested = [n.op_type for n in proto.graph.node if any(a.HasField("g") or a.graphs for a in n.attribute)]
    foreign = [f"{n.domain}::{n.op_type}" for n in proto.graph.node if n.domain not in ("", "ai.onnx")]
    constants = [attribute.t for node in proto.graph.node for attribute in node.attribute]
    outside = [t.name for t in (*proto.graph.initializer, *constants) if t.data_location or t.external_data]
    if nested or foreign or outside or proto.functions:
        what = (nested + foreign + outside + [f.name for f in proto.functions])[0]
        raise ValueError(
            f"{path} was not written by `coattend export`, or changed since: it contains {what}, and an export has no "
            "loops, branches, functions, foreign operators or other files."
        )


def runner(content: bytes) -> Network:
    """Return the first output of a model as a function of images; the session starts with the first call."""
    import onnxruntime  # type: ignore[import-untyped]

    @functools.cache
    def session() -> Any:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4  # errors are raised as well
        return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        try:
            name, first = session().get_inputs()[0].name, session().get_outputs()[0].name
            (logits,) = session().run([first], {name: images.numpy()})
            return torch.from_numpy(logits)
        except Exception as error:  # onnxruntime's errors have no common class
            reason = str(error).partition("\n")[0][:300]
            raise ValueError(f"onnxruntime cannot run the graph ({reason}); export the network again.") from error

    return run


def onnx_digest(proto: onnx.ModelProto) -> str:
    """Return the digest of a whole model, graph and metadata, without its certificate."""
    whole = type(proto)()
    whole.CopyFrom(proto)
    for entry in [entry for entry in whole.metadata_props if entry.key == KEY]:
        whole.metadata_props.remove(entry)
    return hashlib.sha256(whole.SerializeToString(deterministic=True)).hexdigest()


def _weight_digest(proto: onnx.ModelProto) -> str:
    """Return the digest of certificates of format 1, that of initializers and constants."""
    from onnx import numpy_helper

    arrays: list[tuple[str, NDArray[Any]]] = [(t.name, numpy_helper.to_array(t)) for t in proto.graph.initializer]
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                arrays.append((node.output[0], numpy_helper.to_array(attribute.t)))
    return digest_of(arrays)


def require_onnx() -> Any:
    """Return the module onnx, or raise if a library that exporting needs is not installed."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f"ONNX needs {error.name}; {install('onnx')}.") from error
    return onnx
