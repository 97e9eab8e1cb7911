"""Holds the tokenizer and the tasks of the text client, clients/text.py."""
