"""A package, for others install a package of this name."""
