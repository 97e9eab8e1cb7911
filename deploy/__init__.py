"""python -m deploy: the image and its models on Amazon SageMaker.

A command is a module with `configure(parser)` and `run(arguments, context)` (the table is in commandline.py). Every
AWS call goes through `Calls` (calls.py), which makes it or, in a dry run, prints it and goes on with an assumed
reply. What is created carries two tags (stack.py), and `delete` removes what carries them.
"""
