"""The model manager, a separate process that loads and unloads models, and recovers models whose
process has died."""
