"""Builds models from ONNX and TorchScript files that no other family takes. The models have no
client: callers send and receive tensors."""

from build_engines.families import own_onnx, own_torchscript
from build_engines.families.family import Family
from build_engines.weights import ONNX_FILE, TORCHSCRIPT_FILE

FAMILY = Family(
    client="",
    writers={ONNX_FILE: own_onnx.write_model, TORCHSCRIPT_FILE: own_torchscript.write_model},
    recognizes=lambda weights: weights.kind in (ONNX_FILE, TORCHSCRIPT_FILE),
)
