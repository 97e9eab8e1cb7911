"""The models that are served: what is known of each, how many requests use it, and how callers' names find it."""
