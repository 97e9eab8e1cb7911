"""What is served: the folder that Triton reads (store.py), what is known of each model (table.py), and who uses it
(leases.py)."""
