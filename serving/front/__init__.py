"""The code that runs in a gunicorn worker: routes, admission, replies, metrics, logs. Only this
package imports flask."""
