"""Triton's python-based backends for machines without NVIDIA's image, and their installation."""
