"""Finds, stages and checks the models, in short-lived processes that run before or beside
Triton."""
