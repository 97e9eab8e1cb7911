"""What lies on disk and whether it fits this machine: layout, TensorRT plans, archives. Standard library only."""
