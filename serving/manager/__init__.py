"""The model manager, a process of its own in every mode: it alone loads, unloads and recovers models.

at_start.py    what `serve` stages before tritonserver begins    on_change.py   folders that change (SERVE_RELOAD)
on_request.py  archives: POST /models, DELETE /models/NAME       recovery.py    a model's process has died
manager.py     the table, and what all of these ask of Triton    __main__.py    the process and its sockets
"""
