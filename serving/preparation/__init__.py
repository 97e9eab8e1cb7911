"""Short-lived processes that run before or beside Triton: to find and stage the models, and to
check them."""
