"""The states of a model, and the events that lead from one to another. Standard library only.

    loading, adding -> ready -> reloading -> reloaded -> ready
                                    |
                                    +-> refusing -> refused -> reloading
    ready -> unloading

Triton never finishes unloading a process that has died (triton/quirks.py), but it can load new
processes beside it and unload those. So a model whose process died is `reloading`: it is unloaded
and loaded again. To remove such a model, it is first reloaded and then unloaded: a thread does this
while the model is `refusing`, and Manager.unload while it is `unloading`.
"""

from enum import Enum

LOADING = "loading"  # tritonserver loads the model at its start
ADDING = "adding"  # a call loads the model for the first time; the platform must not find it yet
READY = "ready"
FAILED = "failed"  # Triton could not load the model, or the model failed on its example
RESTARTING = "restarting"  # a process of the model died, and the model waits for a reload
RELOADING = "reloading"  # a thread is reloading the model
# a thread has reloaded the model, but recovery has not seen the new processes yet
RELOADED = "reloaded"
REFUSING = "refusing"  # the model's processes died too often: a thread is unloading the model
REFUSED = "refused"  # the model has been unloaded, and waits for a reload
UNLOADING = "unloading"  # no call may begin to use the model; Triton may still have it loaded
STATES = (
    LOADING,
    ADDING,
    READY,
    FAILED,
    RESTARTING,
    RELOADING,
    RELOADED,
    REFUSING,
    REFUSED,
    UNLOADING,
)


class Event(Enum):
    """An event that changes a model's state: {state before: state after}. A state that is not
    listed does not change."""

    # a new tritonserver loads everything that is staged, which may not include a model that is
    # being unloaded
    SERVER_STARTED = {state: LOADING for state in STATES if state != UNLOADING}
    # the threads of the previous manager ended with it
    MANAGER_STARTED = {
        ADDING: UNLOADING,
        RELOADING: RESTARTING,
        RELOADED: RESTARTING,
        REFUSING: REFUSED,
    }
    LOADED = {LOADING: READY, ADDING: READY}
    LOAD_FAILED = {LOADING: FAILED, READY: FAILED}
    DIED = {READY: RELOADING}
    # the model died too often or cannot be reloaded; a new tritonserver may have started in the
    # meantime
    REFUSE = {READY: REFUSING, RELOADING: REFUSING, LOADING: REFUSING}
    RELOAD_ENDED = {RELOADING: RELOADED}
    PROCESSES_SEEN = {RELOADED: READY}
    UNLOAD_ENDED = {REFUSING: REFUSED}
    INTERRUPTED = {RELOADING: RESTARTING, REFUSING: REFUSED}
    DUE = {RESTARTING: RELOADING, REFUSED: RELOADING}
    UNLOAD = dict.fromkeys(STATES, UNLOADING)
