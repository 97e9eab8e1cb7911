"""The machine: processors, memory, GPUs, Triton's server. Standard library only, because all
processes import it."""
