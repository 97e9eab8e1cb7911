"""python -m serving.reload: looks at the model folders every second, and has those that have changed served.

It imports little until a folder changes. SIGHUP asks for a look at once, at what was refused too.
"""

import logging
import os
import signal
import sys
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import TritonUnavailable
from serving.reload.folders import Found, models_in
from serving.repository.live import LiveModels
from serving.settings.table import Settings

if TYPE_CHECKING:
    from serving.reload.changes import Changes
    from serving.reload.home import Home

log = logging.getLogger(__name__)
PAUSE, TIDYING = 1.0, 0.3  # between two looks; while models are being unloaded
SETTLED = 0.9  # seconds without a change


def main() -> None:
    """Until a signal ends it."""
    asked = threading.Event()
    signal.signal(signal.SIGHUP, lambda _number, _frame: asked.set())
    settings = Settings.from_env(os.environ)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=settings.log_level.upper(), stream=sys.stdout)
    reloader, said = Reloader(settings), ""
    while True:
        text = ""
        if again := asked.is_set():  # else nothing is cleared: a signal that comes now is heard by the next look
            asked.clear()
        try:
            reloader.step(again)
        except TritonUnavailable:
            log.debug("tritonserver is not there; the next look finds it")
        except OSError as err:
            if (text := f"the model repository cannot be read: {err}; what is served stays") != said:
                log.error(text)
        except Exception as err:
            if (text := f"the model folders cannot be looked at: {type(err).__name__}: {err}") != said:
                log.exception("%s; what is served stays", text)
        said = text
        asked.wait(PAUSE if reloader.is_tidy() else TIDYING)


class Reloader:
    """Looks, waits until a folder is changed no more, and has it served."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.live = settings, LiveModels(settings.live_folder)
        models = self.live.table().models
        self._done: dict[str, Found] | None = {
            name: Found(Path(model.source), model.signature) for name, model in models.items()
        }
        self._since: dict[str, tuple[Found | None, float]] = {}

    def step(self, asked: bool) -> None:
        """One look; nearly always there is nothing to see."""
        seen, now = models_in(self.settings.model_repositories), time.monotonic()
        for name in seen.keys() | self._since.keys():
            if name not in self._since or self._since[name][0] != seen.get(name):
                self._since[name] = (seen.get(name), now)
        moving = {name for name, (_, since) in self._since.items() if now < since + SETTLED and not asked}
        if seen == self._done and not asked and self.is_tidy():
            return
        self._home.tidy()
        is_whole = self._changes.serve(seen, moving, again=asked)
        self._done = seen if is_whole else None

    @cached_property
    def _changes(self) -> "Changes":
        from serving.reload.changes import Changes
        from serving.triton.gateway import TritonGateway

        address, seconds = f"unix:{self.settings.triton_sockets.grpc}", self.settings.grpc_timeout
        gateway = TritonGateway(address, seconds, stream_timeout=self.settings.stream_timeout)
        return Changes(self.settings, self.live, gateway)

    @cached_property
    def _home(self) -> "Home":
        from serving.reload.home import Home

        return Home(self.settings, self.live, self._changes.loader)

    def is_tidy(self) -> bool:
        """Whether nothing is left of what was served before, and all models have their own names."""
        models = self.live.table().models
        return not self.live.leftovers() and all(model.triton_name == name for name, model in models.items())


if __name__ == "__main__":
    main()
