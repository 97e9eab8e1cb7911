"""Defines the states of a model, and the events that change them. Standard library only. The most
important changes are:

    absent -> adding -> ready -> reloading -> reloaded -> ready
             loading -> ready        |
                                     +-> refusing -> refused -> reloading
    ready -> unloading -> absent

Triton never finishes unloading a process that has died (triton/quirks.py), but it can load new
processes beside the dead one, and unload those. So if a process of a model dies, the model becomes
`reloading`: Triton is told to unload it and to load it again. Even if the model is to be removed,
it must be reloaded before it can be unloaded. A recovery thread does this while the model is
`refusing`, and Manager.unload does it if the unload takes too long.
"""

from enum import Enum

ABSENT = "absent"  # the table of models does not contain this load of the model
LOADING = "loading"  # tritonserver is starting, and loads the model
ADDING = "adding"  # the model is being loaded by a call; Entry.error returns ModelNotLoaded
READY = "ready"
FAILED = "failed"  # Triton could not load the model, or the model failed on its example
RESTARTING = "restarting"  # a process of the model died, and the model waits for a reload
RELOADING = "reloading"  # a thread is reloading the model
# a thread has reloaded the model, but Recovery.step has not seen the new processes yet
RELOADED = "reloaded"
# the model's processes died too often, or it cannot be reloaded: a thread is unloading the model
REFUSING = "refusing"
REFUSED = "refused"  # the model has been unloaded, and waits for a reload
UNLOADING = "unloading"  # no new call may use the model, but Triton may still have it loaded
STATES = (  # all states that a model in the table can have
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
    """An event that changes a model's state. Its value maps the state before the event to the state
    after it. In any other state, the event changes nothing. The survey writes the first table, in
    which all models are LOADING."""

    ADD = {ABSENT: ADDING}  # a call begins to load the model
    # The model has been loaded from a changed folder. It replaces an earlier load in the table.
    SERVE = {ABSENT: READY}
    # A new tritonserver loads all staged models. A model in UNLOADING might not be staged any more.
    SERVER_STARTED = {state: LOADING for state in STATES if state != UNLOADING}
    # the threads that were loading or recovering models ended with the previous manager
    MANAGER_STARTED = {
        ADDING: UNLOADING,
        RELOADING: RESTARTING,
        RELOADED: RESTARTING,
        REFUSING: REFUSED,
    }
    LOADED = {LOADING: READY, ADDING: READY}
    LOAD_FAILED = {LOADING: FAILED, READY: FAILED}
    DIED = {READY: RELOADING}
    # The model died too often, or it cannot be reloaded. It is LOADING if a new tritonserver has
    # started in the meantime.
    REFUSE = {READY: REFUSING, RELOADING: REFUSING, LOADING: REFUSING}
    RELOAD_ENDED = {RELOADING: RELOADED}
    PROCESSES_SEEN = {RELOADED: READY}
    UNLOAD_ENDED = {REFUSING: REFUSED}
    # the recovery thread ended before its work was done, for example because tritonserver ended
    INTERRUPTED = {RELOADING: RESTARTING, REFUSING: REFUSED}
    DUE = {RESTARTING: RELOADING, REFUSED: RELOADING}  # Entry.until has passed
    UNLOAD = dict.fromkeys(STATES, UNLOADING)
    REMOVE = dict.fromkeys(STATES, ABSENT)  # it has been unloaded, or cannot be served
