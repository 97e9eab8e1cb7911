"""The context that every command gets."""

from collections.abc import Callable
from dataclasses import dataclass

from deploy.calls import Calls
from deploy.engine import Engine
from deploy.regions import COMMERCIAL, Partition


@dataclass(frozen=True)
class Context:
    """`name` names the endpoint and the stack; `tags` are the user's own, for all that is made. `out` writes a result
    to stdout, `say` writes progress to stderr."""

    calls: Calls
    name: str
    region: str
    engine: Engine
    out: Callable[[str], None]
    say: Callable[[str], None]
    confirm: Callable[[str], bool]
    clock: Callable[[], float]  # seconds since 1970
    sleep: Callable[[float], None]
    partition: Partition = COMMERCIAL
    tags: tuple[tuple[str, str], ...] = ()
