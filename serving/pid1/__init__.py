"""Implements process 1 of the container, which starts, watches and restarts nginx, gunicorn,
tritonserver, the model manager and, if enabled, the CloudWatch agent.

processes.py and nginx.py contain the command lines of these processes; supervisor.py decides when
to start, restart and stop them. This package does not read models. It uses only the standard
library.
"""
