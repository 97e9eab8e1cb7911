"""What this machine offers: processors, memory, a GPU, Triton's server. Standard library only; run by everybody."""
