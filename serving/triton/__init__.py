"""The gateway to Triton, and the translation of its errors into ours.

Tensors travel over gRPC as raw bytes, large inputs through /dev/shm; metrics and multi-model loads take HTTP.
Only this package imports grpc and tritonclient. Connections are made at first use, which is after gunicorn's fork, and
kept: one channel for each worker.
"""
