"""Makes what Triton serves: `python -m build_engines MODEL` fills model_repository/MODEL."""
