"""Builds models from files of any other network. They are served without a client: tensors in,
tensors out."""

from build_engines.families import own_onnx, own_torchscript
from build_engines.families.family import Family
from build_engines.weights import ONNX_FILE, TORCHSCRIPT_FILE

EXPORTS = {ONNX_FILE: own_onnx.export, TORCHSCRIPT_FILE: own_torchscript.export}
FAMILY = Family(client="", exports=EXPORTS, recognizes=lambda weights: weights.kind in EXPORTS)
