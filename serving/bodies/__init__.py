"""Parses the bodies that callers send. Each kind of body has a class that creates the inputs for
Triton, and the reply."""
