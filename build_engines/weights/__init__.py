"""Where weights come from and what their files say: --weights, downloads, SHA-256, readers of ONNX
and torch files."""
