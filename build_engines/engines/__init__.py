"""From an fp32 model to the file that is served: ONNX Runtime and OpenVINO on a CPU, TensorRT on a
GPU."""
