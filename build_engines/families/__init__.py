"""Contains the families of models that can be built: each module with a FAMILY is one. The other
modules hold what families share. find_family.py chooses the family for a build."""
