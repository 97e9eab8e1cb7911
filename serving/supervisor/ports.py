"""The ports that others reach. We listen and nginx inherits: while it is started again, callers wait."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from serving.settings.setting import SettingsError
from serving.settings.table import Settings

BACKLOG = 1024  # as in nginx.conf


@contextmanager
def listening(settings: Settings) -> Iterator[tuple[socket.socket, ...]]:
    """A listening socket for each port, as long as this lasts; SettingsError names those that cannot be had."""
    wanted = {f"SERVE_HOST={settings.host} and PORT={settings.port}": settings.port}
    if settings.allow_grpc:
        wanted[f"SAGEMAKER_TRITON_GRPC_PORT={settings.grpc_port}"] = settings.grpc_port
    if settings.allow_metrics:
        wanted[f"SAGEMAKER_TRITON_METRICS_PORT={settings.metrics_port}"] = settings.metrics_port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    mistakes, listeners = [], []
    with ExitStack() as opened:
        for name, port in wanted.items():
            try:
                listener = socket.create_server((settings.host, port), family=family, backlog=BACKLOG)
            except OSError as err:
                mistakes.append(f"{name}: cannot listen there: {reason(err)}")
            else:
                listener.setblocking(False)  # two workers of nginx see a connection, and one gets it
                listeners.append(opened.enter_context(listener))
        if mistakes:
            raise SettingsError(mistakes)
        yield tuple(listeners)


def reason(error: OSError) -> str:
    """In the system's words; create_server adds some."""
    return (error.strerror or str(error)).partition(" (while attempting")[0]
