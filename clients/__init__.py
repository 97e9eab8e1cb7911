"""One client per model family. The `client` parameter of config.pbtxt names the module.

Each module defines `Client`, a subclass of `clients.base.ModelClient`.
"""
