"""Makes what Triton serves: `python -m build_engines build MODEL` fills model_repository/MODEL."""
