"""Simulates on one machine what SageMaker does with a container. See docs/simulate.md."""
