"""What is known about each model: its state and why it is not served (table.py), how many requests
use it (shared_files.py), and which one a caller's name means (registry.py)."""
