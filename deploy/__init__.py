"""python -m deploy: push the image to ECR and run it on one Amazon SageMaker endpoint.

Each command is a function of its options (options.py) and of Aws (aws.py), which makes the calls. A
dry run makes those that read, and prints those that write. Every resource gets two tags, and
`delete` removes what has them.
"""
