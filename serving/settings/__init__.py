"""Reads and checks the operator's environment variables. Standard library only, because process 1
imports it too."""
