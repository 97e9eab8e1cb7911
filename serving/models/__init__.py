"""What is served: what is known of each model (table.py), who uses it (leases.py), and how many calls may
(admission.py)."""
