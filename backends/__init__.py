"""Contains Triton's Python-based backends for machines without NVIDIA's image."""
