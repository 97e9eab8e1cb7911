"""Contains this project's backends for Triton, in Python, for use without NVIDIA's image."""
