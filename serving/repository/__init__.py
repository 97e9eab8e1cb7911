"""Finds model folders on disk, checks that they can be served on this machine, and writes the
folder that Triton reads (staging.py)."""
