"""Defines the client `bert`, which serves texts. By default it returns sentence embeddings of
length 1."""

from clients import text


class Client(text.Client):
    """Serves BERT, or any other text encoder whose config.pbtxt names the client `bert`."""
