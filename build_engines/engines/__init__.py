"""Turns an fp32 model into the file that is served: by ONNX Runtime and OpenVINO on a CPU, by
TensorRT on a GPU."""
