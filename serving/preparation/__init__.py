"""Short processes before or beside Triton: completing configurations, checking models."""
