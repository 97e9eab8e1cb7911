"""The model folders on disk, whether they fit this machine, and the folder that Triton reads
(staging.py)."""
