"""SageMaker on your desk: the platform around a container, on one machine. See docs/simulate.md."""
