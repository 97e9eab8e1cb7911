"""What serves the models, in packages by who runs the code and what it knows: docs/architecture.md lists them."""
