"""Pushes the image to ECR, and runs it on one Amazon SageMaker endpoint: python -m deploy.

Each command is a function. Its parameters are the command's options (options.py), and an object
that makes the calls to AWS (aws.py). A dry run makes the calls that only read, and prints the calls
that would write. The endpoint, its configurations and its models get two tags, and `delete` removes
those that have both.
"""
