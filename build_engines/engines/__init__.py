"""Turns an fp32 model into the file that is served: by ONNX Runtime or OpenVINO on a CPU, or by
TensorRT on a GPU."""
