"""The families of models that can be built: each module with a FAMILY is one. The other modules
hold what they share. find_family.py chooses the family."""
