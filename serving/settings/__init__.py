"""What the operator says: environment variables, read and checked. Standard library only; run by everybody."""
