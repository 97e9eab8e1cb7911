"""Waits for AWS and prints the progress."""

from collections.abc import Callable, Collection

from deploy.calls import Reply
from deploy.context import Context
from deploy.errors import DeployError

POLL = 10.0  # seconds between two polls
REPORT = 60.0  # seconds after which an unchanged status is printed again
GONE = "Deleted"  # our status for a resource that does not exist any more
LIMIT = 2 * 3600.0  # seconds; AWS itself gives up on an endpoint sooner


def wait(
    context: Context, what: str, describe: Callable[[], Reply | None], field: str, pending: Collection[str]
) -> Reply:
    """The first reply of `describe` whose status (`field`) is not pending; {field: GONE} for a deleted resource.

    Raises DeployError after LIMIT.
    """
    started = context.clock()
    said, said_at = "", started
    while True:
        reply = describe() or {field: GONE}
        status, now = reply[field], context.clock()
        if status != said or now - said_at >= REPORT:
            context.say(f"{elapsed(now - started)} {what}: {status}")
            said, said_at = status, now
        if status not in pending:
            return reply
        if now - started > LIMIT:
            raise DeployError(f"{what} is still {status} after {elapsed(LIMIT)}; 'status' shows the progress")
        context.sleep(POLL)


def elapsed(seconds: float) -> str:
    """h:mm:ss"""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
