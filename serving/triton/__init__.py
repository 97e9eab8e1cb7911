"""The way to Triton, and the translation of its errors into ours.

`gateway.py` infers, `connection.py` asks about the server and its models. Tensors travel over gRPC as raw bytes, large
inputs through /dev/shm; Triton's metrics take HTTP. Only this package imports grpc and tritonclient.
"""
