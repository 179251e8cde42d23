"""Export of networks to where this library is not installed: plain torch, ONNX, and a certificate of each file."""

from coattend.export.certificate import Certificate as Certificate
from coattend.export.formats import Format as Format
from coattend.export.formats import check_certificate as check_certificate
from coattend.export.formats import export_file as export_file
from coattend.export.formats import register_format as register_format
from coattend.export.freeze import LayerTracer as LayerTracer
from coattend.export.freeze import freeze as freeze
from coattend.export.int8 import export_int8 as export_int8
from coattend.export.measurement import CertificateCheck as CertificateCheck
from coattend.export.onnx import export_onnx as export_onnx
from coattend.export.pt import export_frozen as export_frozen
from coattend.export.pt import export_pt2 as export_pt2
from coattend.export.rules import freeze_layer as freeze_layer
from coattend.export.safetensors import export_safetensors as export_safetensors
