"""Builds the models that Triton serves: `python -m build_engines build MODEL` writes
model_repository/MODEL."""
