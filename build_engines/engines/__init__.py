"""Turns an fp32 model into the file that ONNX Runtime or OpenVINO serves on a CPU, or TensorRT on a
GPU."""
