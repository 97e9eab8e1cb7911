"""Keeps track of the models: the state of each and why it is not served (models.py), how many
requests use it (shared_files.py), and which model a caller's name refers to (registry.py)."""
