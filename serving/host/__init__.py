"""The machine: processors, memory, a GPU, Triton's server. Standard library only, because all
processes use it."""
