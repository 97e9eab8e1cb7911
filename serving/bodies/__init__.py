"""Parses the bodies that callers send. Each kind of body has a class, whose method `bind` returns
the Job that creates the inputs for Triton and the reply."""
