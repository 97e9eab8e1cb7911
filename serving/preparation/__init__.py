"""Short processes before or beside Triton: building plans, completing configurations, checking models."""
