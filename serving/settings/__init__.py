"""The operator's environment variables, read and checked. Standard library only, because all
processes use it."""
