"""Implements the model manager, a separate process that loads and unloads models, and reloads
models whose processes have died."""
