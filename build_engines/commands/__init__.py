"""The command line: its arguments, and one module per command."""
