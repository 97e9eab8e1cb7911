"""From an fp32 model to the file that is served, one module per --for: ONNX Runtime on a CPU, TensorRT on a GPU."""
