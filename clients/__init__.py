"""One client per model family: a module named as the `client` parameter of config.pbtxt names it.

Each module defines `Client`, a subclass of `clients.base.ModelClient`.
"""
