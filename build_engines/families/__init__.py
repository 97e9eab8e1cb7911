"""Contains the families of models that can be built. Each module that defines FAMILY describes one
family; the others contain the code that the families use. find_family.py chooses the family for a
build."""
