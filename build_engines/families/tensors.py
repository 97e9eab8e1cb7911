"""Files of any other network: they take and give tensors, without a client."""

from build_engines.families import onnx_file, torchscript
from build_engines.families.family import Family
from build_engines.weights import ONNX_FILE, TORCHSCRIPT_FILE

EXPORTS = {ONNX_FILE: onnx_file.export, TORCHSCRIPT_FILE: torchscript.export}
FAMILY = Family(client="", exports=EXPORTS, recognises=lambda weights: weights.kind in EXPORTS)
