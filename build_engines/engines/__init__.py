"""Turns an fp32 model into the engine for each value of --for: cpu, openvino, gpu and tensorrt."""
