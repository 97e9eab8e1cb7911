"""Contains one module for each of the other servers that are compared."""
