"""The gateway to Triton: the one seam to another process, and its errors made ours.

Tensors travel over gRPC as raw bytes, large inputs through /dev/shm; metrics and multi-model loads take HTTP.
Only this package imports grpc and tritonclient. Connections are made at first use, that is after gunicorn's fork, one
channel and one pool per worker, and kept.
"""
