"""Multi-model mode's control plane: archives that are loaded and unloaded while others are served."""
