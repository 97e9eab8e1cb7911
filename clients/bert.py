"""The client `bert` serves texts. Its defaults are those of a sentence encoder, which gives
embeddings of length 1."""

from clients import text


class Client(text.Client):
    """Serves a BERT, or any other encoder of texts whose config.pbtxt names the client `bert`."""
