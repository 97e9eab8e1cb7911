"""What callers send, as data: one class for each kind of body, with its way to Triton's inputs and its reply."""
