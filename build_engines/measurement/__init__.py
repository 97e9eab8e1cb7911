"""How fast and how accurate a model's file is on this machine, without Triton."""
