"""Reads and checks the operator's environment variables. Standard library only, because all
processes import it."""
