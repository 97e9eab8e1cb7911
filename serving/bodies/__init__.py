"""The bodies that callers send: one class for each kind, which creates Triton's inputs and the
reply."""
