"""The model folders on disk, checks that they fit this machine, and the folder that Triton reads
(staging.py)."""
