"""The model manager, a separate process that loads and unloads models, and recovers those whose
process has died."""
