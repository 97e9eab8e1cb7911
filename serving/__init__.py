"""The code that serves the models. docs/architecture.md lists its packages and what each one
knows."""

VERSION = "0.1.0"  # of everything here; `make release` changes it
