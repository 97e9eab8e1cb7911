"""The life of a model: when it is loaded and unloaded, and what happens when its process dies. The code of the model
manager, a process of its own in every mode.

manager.py    the table, what all others ask of Triton, and the policy of models that are loaded at the start alone
on_change.py  the policy of folders that change (SERVE_RELOAD)
on_post.py    the policy of archives: POST /models, DELETE /models/NAME
recovery.py   what happens when a process of a model has died
examples.py   asks each model its example after a start
__main__.py   the process and its sockets
"""
