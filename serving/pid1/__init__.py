"""Process 1 of the container, which starts, watches and restarts nginx, gunicorn, tritonserver and
the model manager.

It knows nothing about models. processes.py and nginx.py contain the command lines, supervisor.py
the policy. This package uses only the standard library.
"""
