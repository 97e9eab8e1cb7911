"""What runs inside a gunicorn worker: routes, refusals for load, replies, metrics, logs. The only
place with flask."""
