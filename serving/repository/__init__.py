"""What lies on disk, whether it fits this machine, and what of it Triton reads (store.py)."""
