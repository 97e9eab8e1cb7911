"""Simulates SageMaker, the platform around one container, on one machine. See docs/simulate.md."""
