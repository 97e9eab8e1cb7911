"""Implements what a gunicorn worker does with a request: routes, admission, replies, metrics and
logs. In the server, only this package and predictor.py import flask."""
