"""Gives a model that was switched to the copy that was tried its own name in Triton again, and tidies up behind it."""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from serving.host.machine import memory_limit
from serving.host.processes import used_by
from serving.inference.keeper import Tritonserver
from serving.multimodel import memory
from serving.multimodel.memory import ModelMemory
from serving.reload.loading import Loader, Models
from serving.reload.trial import Refused
from serving.repository.archives import Archive
from serving.repository.layout import CONFIG
from serving.repository.live import LiveModel, LiveModels
from serving.settings.table import Settings

log = logging.getLogger(__name__)
PAUSE = 30.0  # seconds, after a failure


class Home:
    """For one thread."""

    def __init__(self, settings: Settings, live: LiveModels, loader: Loader) -> None:
        self.settings, self.live, self.loader = settings, live, loader
        self.tritonserver = Tritonserver(settings.status_file, settings.triton_restart_request)
        self._home_at, self._fits = 0.0, True

    def tidy(self) -> None:
        """Gives models their own names again where no call uses what had these, and unloads what else no call uses.
        Raises TritonUnavailable, TritonTimeout."""
        away = self._away()
        expected = {name for models in away for name in models} if self._fits else set[str]()
        for name in self.live.leftovers():
            if name not in expected and not self.live.is_used(name):
                self.loader.drop(name)
        for models in away:
            if time.monotonic() > self._home_at and self._are_free(models):
                self._go_home(models)
        if not self.live.leftovers():
            self.live.remove_copies()

    def _away(self) -> Iterable[Models]:
        """Models that Triton knows by other names, those together that were changed together."""
        found: dict[str, dict[str, LiveModel]] = {}
        for name, model in self.live.table().models.items():
            if model.triton_name != name:
                found.setdefault(model.load, {})[name] = model
        return found.values()

    def _are_free(self, models: Models) -> bool:
        """Whether their own names can be theirs: nothing has these, or what has them is not called and there is memory
        for both."""
        taken = [name for name in models if (self.live.repository / name).exists()]
        return not taken or (self._fits and not any(map(self.live.is_used, taken)) and self._has_room(models))

    def _has_room(self, models: Models) -> bool:
        """Whether there is memory for them once more; where there is none, what has their names is unloaded first."""
        folders = tuple(self.live.copy_of(name, model) for name, model in models.items())
        needed = memory.estimate(Archive(folders[0], folders).weight(), len(folders))
        pid = self.tritonserver.pid()
        budget = ModelMemory(int(self.settings.model_memory_share * memory_limit()))
        self._fits = not (pid and budget.shortfall(used_by(pid), needed))
        return self._fits

    def _go_home(self, away: Models) -> None:
        """Triton has what has these names until it has the new ones."""
        self._home_at = time.monotonic() + PAUSE
        home = {name: replace(model, triton_name=name) for name, model in away.items()}
        try:
            for name, model in home.items():
                config = (self.live.path(away[name]) / CONFIG).read_text(encoding="utf-8")
                self.live.hide(name)
                self.live.show(name, model, config)
            self.loader.load(home, {model.triton_name: name for name, model in away.items()})
        except Refused as err:
            self._home_at, self._fits = 0.0 if self._fits else self._home_at, False
            known_as = ", ".join(model.triton_name for model in away.values())
            log.warning("%s; it is served all the same, but Triton knows it as %s", err, known_as)
            return
        table = self.live.table()
        self.live.write(replace(table, models={**table.models, **home}))
        self._home_at, self._fits = 0.0, True
