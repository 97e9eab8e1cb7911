"""Inspects the machine: its processors, memory, GPUs and processes, and the installed tritonserver.
Uses only the standard library, because process 1 imports it too."""
