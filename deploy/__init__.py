"""Pushes the image to ECR, and runs it on one Amazon SageMaker endpoint: python -m deploy.

Each command is a function whose parameters are its options (options.py) and an Aws (aws.py), which
makes the calls. A dry run makes the read calls, and prints the write calls. Every resource gets two
tags, and `delete` removes the resources with these tags.
"""
