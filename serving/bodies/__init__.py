"""The bodies that callers send. Each kind has a class, which creates Triton's inputs and the
reply."""
