"""Files that are copied into an ensemble's folders: models for Triton's backends, clients for the
front."""
