"""Trained networks for places without this library: plain torch, ONNX, and a certificate of what was measured."""

from coattend.export.certificate import Certificate as Certificate
from coattend.export.checking import check_certificate as check_certificate
from coattend.export.formats import export_frozen as export_frozen
from coattend.export.formats import export_pt2 as export_pt2
from coattend.export.formats import export_safetensors as export_safetensors
from coattend.export.freeze import LayerTracer as LayerTracer
from coattend.export.freeze import freeze as freeze
from coattend.export.int8 import export_int8 as export_int8
from coattend.export.onnx import export_onnx as export_onnx
from coattend.export.rules import freeze_layer as freeze_layer
from coattend.export.trained import export_file as export_file
