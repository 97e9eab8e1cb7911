"""The gateway to Triton: the one seam to another process, and its errors made ours.

Tensors of clients travel over gRPC as raw bytes; KServe v2 bodies that callers send are forwarded to Triton's
own HTTP endpoint as they are. Only this package imports grpc and tritonclient. Connections are made at
first use, that is after gunicorn's fork, one channel and one pool per worker, and kept.
"""
