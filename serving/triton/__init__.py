"""Talks to Triton. Only this package imports grpc and tritonclient."""
