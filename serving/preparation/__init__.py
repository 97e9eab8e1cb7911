"""Short-lived processes that run before or beside Triton, to find, stage and check the models."""
