"""How many files and sockets a process may have open (`ulimit -n`), and what fits into that. Standard library only."""

import resource
from dataclasses import replace

from serving.settings.setting import SettingsError
from serving.settings.table import Settings

OWN_FILES = 64  # of a process that has no request: logs, pipes, sockets, libraries, those of its metrics
FILES_PER_REQUEST = 3  # nginx: the caller's connection, the one to gunicorn, a large body; gunicorn: fewer
FEWEST = 128  # below it tritonserver does not start with a model
MOST = 65536  # that are asked for: more are of no use
USUAL_CONNECTIONS = 4096  # of a worker of nginx: idle callers are among them


def hard_limit() -> int:
    """As far as a process may raise its own limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MOST if limit == resource.RLIM_INFINITY else min(MOST, limit)


def raise_soft_limit() -> None:
    """To the hard one, for all processes that are started from now on; never down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit(), hard))


def nginx_connections(max_concurrency: int, limit: int) -> int:
    """Of a worker of nginx: twice the requests that may be in work find room, if the limit allows it."""
    return min(limit - OWN_FILES, max(USUAL_CONNECTIONS, 2 * FILES_PER_REQUEST * max_concurrency))


def most_concurrency(limit: int) -> int:
    """Requests in work for which one process has files enough; SettingsError where it has none."""
    if limit < FEWEST:
        raise SettingsError([f"no more than {limit} open files are allowed (ulimit -n): {FEWEST} are needed at least"])
    return (limit - OWN_FILES) // FILES_PER_REQUEST


def fitted(settings: Settings) -> Settings:
    """The same, with no more requests in work than there are files for."""
    return replace(settings, max_concurrency=min(settings.max_concurrency, most_concurrency(hard_limit())))


def shortage(settings: Settings) -> str:
    """What the log should say where `fitted` changes something, else \"\"."""
    limit, wanted, most = hard_limit(), settings.max_concurrency, most_concurrency(hard_limit())
    if wanted <= most:
        return ""
    needed = OWN_FILES + FILES_PER_REQUEST * wanted
    return (
        f"no more than {limit} open files are allowed (ulimit -n), {needed} are needed for SERVE_MAX_CONCURRENCY="
        f"{wanted}: no more than {most} requests are in work at once. Start the container with --ulimit nofile={needed}"
    )
