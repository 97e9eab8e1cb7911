"""PID 1: the processes, their command lines and ports, nginx's configuration. Standard library only; never imports the
front, nor the front it.
"""
