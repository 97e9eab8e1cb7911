"""The parts of the text client (clients/bert.py): the tokenizer, and one module for each task."""
