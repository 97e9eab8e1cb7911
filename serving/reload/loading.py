"""Loads copies of models into Triton, by the names that they are to have there, and unloads them."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from serving.errors import ServingError, TritonUnavailable
from serving.inference.crashes import Crashes
from serving.reload.trial import Refused
from serving.repository.layout import replace_config
from serving.repository.live import LiveModel, LiveModels
from serving.repository.model_config import read_config, written
from serving.settings.table import Settings
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
HANGS_AFTER = 10.0  # seconds, of an unload: Triton never ends that of an instance whose process has died
Models = Mapping[str, LiveModel]


class Loader:
    """For one thread."""

    def __init__(self, settings: Settings, live: LiveModels, gateway: TritonGateway, crashes: Crashes) -> None:
        self.settings, self.live, self.gateway, self.crashes = settings, live, gateway, crashes
        self._unloading: dict[str, float] = {}

    def load(self, models: Models, names: Mapping[str, str]) -> None:
        """With those names for the parts of ensembles; raises Refused, TritonUnavailable."""
        for model in models.values():
            config = read_config(self.live.path(model), self.settings.device)
            config.name = ""
            for step in config.ensemble_scheduling.step:
                step.model_name = names.get(step.model_name, step.model_name)
            replace_config(self.live.path(model), written(config))
        for name, model in models.items():
            self.crashes.clear(model.triton_name)
            with refused(name):
                self.gateway.load(model.triton_name, self.settings.start_timeout)

    def drop(self, triton_name: str) -> None:
        """A step of its way out of Triton, then out of Triton's repository. Raises TritonUnavailable, TritonTimeout."""
        states = {entry.state for entry in self.gateway.index() if entry.name == triton_name}
        if "READY" in states:
            self._unloading[triton_name] = time.monotonic()
            self.gateway.unload(triton_name)
        elif not states & {"LOADING", "UNLOADING"}:
            self._unloading.pop(triton_name, None)
            self.live.hide(triton_name)
            self.crashes.clear(triton_name)
        elif time.monotonic() > self._unloading.setdefault(triton_name, time.monotonic()) + HANGS_AFTER:
            log.warning("%s: a process of what was tried or served has died; unloading it once more", triton_name)
            with suppress(ServingError):  # as inference/keeper.py does: the next look unloads it
                self.gateway.load(triton_name, self.settings.start_timeout)
            self._unloading[triton_name] = time.monotonic()


@contextmanager
def refused(name: str) -> Iterator[None]:
    """A ServingError as Refused, except that there is no tritonserver."""
    try:
        yield
    except TritonUnavailable:
        raise
    except ServingError as err:
        text = str(err)
        raise Refused([text if f"'{name}'" in text else f"{name}: {text}"]) from err
