"""The other servers to compare, one module for each."""
