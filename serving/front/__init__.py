"""What runs inside a gunicorn worker: routes, replies, metrics, logs. The only place with flask."""
