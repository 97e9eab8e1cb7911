"""The states of a model, and the events that lead from one to another. Standard library only.

    loading, adding -> ready -> reloading -> reloaded -> ready
                                    |
                                    +-> refusing -> refused -> reloading

Triton never ends the unload of a process that has died (triton/quirks.py), but it loads new ones
beside it, and it can unload these. So a model whose process died is `reloading`: Triton unloads and
loads it. To remove such a model, Triton reloads it and then unloads it again: a thread does so
while the model is `refusing`, and Manager.unload while it is `unloading`.
"""

from enum import Enum

LOADING = "loading"  # tritonserver loads it when it starts
ADDING = "adding"  # POST /models loads it for the first time; its platform must not find it yet
READY = "ready"
FAILED = "failed"  # Triton did not load it, or it did not answer its example
RESTARTING = "restarting"  # a process of it died, and it waits for a reload
RELOADING = "reloading"  # a thread reloads it
RELOADED = "reloaded"  # a thread has reloaded it, but recovery has not seen its new processes
REFUSING = "refusing"  # its processes died too often: a thread unloads it
REFUSED = "refused"  # it is unloaded, and waits for a reload
UNLOADING = "unloading"  # no call may begin to use it; Triton may still have it
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
    """What happens to a model: {state before: state after}. In any other state it changes
    nothing."""

    # a new tritonserver loads all that is staged, which a model that is unloaded may not be
    SERVER_STARTED = {state: LOADING for state in STATES if state != UNLOADING}
    # the threads of the previous manager have ended with it
    MANAGER_STARTED = {
        ADDING: UNLOADING,
        RELOADING: RESTARTING,
        RELOADED: RESTARTING,
        REFUSING: REFUSED,
    }
    LOADED = {LOADING: READY, ADDING: READY}
    LOAD_FAILED = {LOADING: FAILED, READY: FAILED}
    DIED = {READY: RELOADING}
    # it died too often or cannot be reloaded, perhaps not by a tritonserver that starts meanwhile
    REFUSE = {READY: REFUSING, RELOADING: REFUSING, LOADING: REFUSING}
    RELOAD_ENDED = {RELOADING: RELOADED}
    PROCESSES_SEEN = {RELOADED: READY}
    UNLOAD_ENDED = {REFUSING: REFUSED}
    INTERRUPTED = {RELOADING: RESTARTING, REFUSING: REFUSED}
    DUE = {RESTARTING: RELOADING, REFUSED: RELOADING}
    UNLOAD = dict.fromkeys(STATES, UNLOADING)
