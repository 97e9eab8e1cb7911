"""Contains the families of models that can be built. A module that defines FAMILY is a family; the
other modules help to build them. find_family.py chooses the family for a build."""
