"""The model manager, a process of its own: it loads and unloads models, and recovers those whose
process has died."""
