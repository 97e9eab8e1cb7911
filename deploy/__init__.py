"""python -m deploy: the image and its models on Amazon SageMaker.

A command is a module with `configure(parser)` and `run(arguments, context)` (the table is in commandline.py). Every
AWS call goes through `Calls` (calls.py), which makes the call or, in a dry run, prints it and returns an assumed
reply. Every resource gets two tags (stack.py), and `delete` removes the resources with these tags.
"""
