"""Communicates with Triton. Only this package imports grpc and tritonclient."""
