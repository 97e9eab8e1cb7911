"""Contains this project's backends for Triton, written in Python, for use without NVIDIA's image."""
