"""Inspects the machine: processors, memory, GPUs and Triton's server. Uses only the standard
library, because all processes import it."""
