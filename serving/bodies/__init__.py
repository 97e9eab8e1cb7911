"""What callers send, as data: one class for each kind of body, which makes Triton's inputs and the
reply."""
