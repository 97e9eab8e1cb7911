"""Contains the families of models that can be built. A module that defines FAMILY is a family; the
other modules are shared by several families. find_family.py chooses the family for a build."""
