"""Process 1 of the container: starts, watches and restarts nginx, gunicorn, tritonserver and the
model manager.

It does not know the models. processes.py has the command lines, supervisor.py the policy. Standard
library only.
"""
