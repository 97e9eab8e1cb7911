"""Finds models on disk and in buckets, checks that they can be served on this machine, and writes
the folders that Triton reads (staging.py)."""
