"""What every command works with."""

from collections.abc import Callable
from dataclasses import dataclass

from deploy.calls import Calls
from deploy.engine import Engine


@dataclass(frozen=True)
class Context:
    """`name` is the endpoint's and the stack's. `out` writes a result to stdout, `say` progress to stderr."""

    calls: Calls
    name: str
    region: str
    engine: Engine
    out: Callable[[str], None]
    say: Callable[[str], None]
    confirm: Callable[[str], bool]
    clock: Callable[[], float]  # seconds since 1970
    sleep: Callable[[float], None]
