"""What serves the models, in packages by who runs the code and what it knows: docs/architecture.md lists them."""

VERSION = "0.1.0"  # of everything here; `make release` changes it
