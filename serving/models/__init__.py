"""The models that are served: what is known of each (table.py), how callers' names find them (registry.py), and how
many requests use them (leases.py)."""
