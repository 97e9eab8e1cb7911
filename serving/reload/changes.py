"""Has changed models served, so that no call meets a mixture of the old and the new.

    copy -> findings -> load as __NAME -> example -> table: NAME is __NAME -> calls of the old NAME end
    -> load the same copy as NAME, in its place -> table: NAME is NAME -> calls of __NAME end -> unload __NAME

The second half gives the model its own name in Triton again, which gRPC, /v2 and models that call it know. Models that
call each other go this way together. What is left to do follows from the table and from Triton's repository, whoever
did the first part.
"""

import logging
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from serving.codecs import Limits
from serving.decoding import Decoder
from serving.errors import BackendDied, InferenceFailed, LoadFailed, ServingError, TritonUnavailable
from serving.host import tritonserver
from serving.host.machine import memory_limit
from serving.host.process_memory import used_by
from serving.inference.crashes import Crashes
from serving.inference.example import try_example
from serving.inference.keeper import Tritonserver
from serving.inference.live_registry import LiveRegistry
from serving.inference.service import Inference
from serving.multimodel import memory
from serving.multimodel.memory import ModelMemory
from serving.preparation.staging import Staging
from serving.reload.folders import Folders, Found
from serving.reload.trial import Refused, examine
from serving.repository.archives import Archive
from serving.repository.layout import CONFIG
from serving.repository.links import replace_config
from serving.repository.live import SPARE, LiveModel, LiveModels, Refusal, Table, new_load
from serving.repository.model_config import read_config, written
from serving.settings.table import Settings
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
HANGS_AFTER = 10.0  # seconds, of an unload: Triton never ends that of an instance whose process has died
HOME_PAUSE = 30.0
Models = Mapping[str, LiveModel]


class Changes:
    """Of the models of one server; for one thread."""

    def __init__(self, settings: Settings, live: LiveModels, gateway: TritonGateway) -> None:
        self.settings, self.live, self.gateway = settings, live, gateway
        crashes = Crashes(settings.run_dir / "crashes")
        self.registry = LiveRegistry(self.gateway, live, "", settings.model_clients, crashes)
        self.inference = Inference(self.gateway, Decoder(Limits(settings.max_image_pixels)))
        self.staging = Staging(settings, tritonserver.backend_directory())
        self._unloading: dict[str, float] = {}
        self.tritonserver = Tritonserver(settings.status_file, settings.triton_restart_request)
        self._home_at, self._fits = 0.0, True

    def serve(self, seen: Mapping[str, Found], moving: Collection[str], again: bool) -> bool:
        """Has those served that are not `moving`, what was refused only `again`; whether nothing was left for later.
        Raises TritonUnavailable, TritonTimeout."""
        states = {name: found.signature for name, found in seen.items()}
        self._forget_refusals(states, again)
        folders, is_whole = Folders(self.settings, self.live.table(), seen), True
        for unit in folders.units():
            state = {name: states.get(name, "") for name in sorted(unit)}
            if any(refusal.folders == state for refusal in self.live.table().refused):
                continue
            targets = self._targets(unit & folders.wanted)
            if unit & set(moving) or targets is None:
                is_whole = False
                continue
            try:
                self._change(unit, self._models(folders, targets))
            except CycleError:
                self._refuse(
                    state, [f"{', '.join(state)}: each calls the other; an ensemble calls models in one direction"]
                )
            except Refused as err:
                self._refuse(state, err.reasons)
        return is_whole

    def tidy(self) -> None:
        """Gives models their own names again where no call uses what had these, and unloads what else no call uses.
        Raises TritonUnavailable, TritonTimeout."""
        away = {name: model for name, model in self.live.table().models.items() if model.triton_name != name}
        for name in self.live.leftovers():
            if not (self.live.is_used(name) or (name in away and self._fits)):
                self._drop(name)
        if away and time.monotonic() > self._home_at and self._are_free(away):
            self._go_home(away)
        if not self.live.leftovers():
            self.live.remove_copies()

    def _forget_refusals(self, states: Mapping[str, str], again: bool) -> None:
        table = self.live.table()
        kept = [each for each in table.refused if each.folders == {name: states.get(name, "") for name in each.folders}]
        if again or len(kept) < len(table.refused):
            self.live.write(replace(table, refused=[] if again else kept))

    def _targets(self, names: Collection[str]) -> dict[str, str] | None:
        """Names for Triton that are free; None while some are not."""
        served = {name: model.triton_name for name, model in self.live.table().models.items() if name in names}
        own, spare = {name: name for name in names}, {name: SPARE + name for name in names}
        are_own = {triton_name == name for name, triton_name in served.items()}
        if len(are_own) > 1:
            return None
        targets = spare if True in are_own else own
        return None if any((self.live.repository / name).exists() for name in targets.values()) else targets

    def _models(self, folders: Folders, targets: Mapping[str, str]) -> dict[str, LiveModel]:
        """Those that are to be served, what others call before these."""
        graph = {name: set(folders.parts[name]) & targets.keys() for name in sorted(targets)}
        load, seen = new_load(), folders.seen
        return {
            name: LiveModel(targets[name], load, str(seen[name].folder), seen[name].signature, folders.parts[name])
            for name in TopologicalSorter(graph).static_order()
        }

    def _change(self, unit: Collection[str], models: Models) -> None:
        """Raises Refused; TritonUnavailable where there is no tritonserver yet."""
        if models:
            self.gateway.is_live()
            log.info("%s: changed or new; looking at it", ", ".join(models))
            self._try(models)
        table = self.live.table()
        kept = {name: model for name, model in table.models.items() if name not in unit}
        refused = [each for each in table.refused if not set(unit) & set(each.folders)]
        self.live.write(Table({**kept, **models}, refused))
        for name in sorted(unit):
            if name in models:
                log.info("%s: the model that lies in %s now is served", name, models[name].source)
            else:
                log.info("%s: its folder is gone, and it is served no more", name)

    def _try(self, models: Models) -> None:
        """Loads them, and asks their examples; raises Refused."""
        with self._told(models):
            for name, model in models.items():
                self.live.copy(name, model)
            repository = self.live.copies_of(next(iter(models.values())))
            facts = examine(self.settings, repository, list(models))
            for note in (*facts.warnings, *facts.engines):
                log.info(note)
            for name, model in models.items():
                copied = self.live.copy_of(name, model)
                self.live.show(name, model, facts.configs.get(str(copied), ""))
                self.staging.fit_plans(copied, self.live.path(model))
                self.staging.complete(self.live.path(model))
            self._load(models, {name: model.triton_name for name, model in models.items()})
            for name, model in models.items():
                self._ask(name, model)

    @contextmanager
    def _told(self, models: Models) -> Iterator[None]:
        """Raises Refused in place of what went wrong, in the words of who laid the folders there. What was shown to
        Triton is left over then, and unloaded as such; a tritonserver that has died does not get it again."""
        try:
            yield
        except TritonUnavailable as err:
            for model in models.values():
                self.live.hide(model.triton_name)
            what = "tritonserver ended while it was tried; correct it, or send serve a SIGHUP to have it tried again"
            raise Refused([f"{', '.join(models)}: {what}"]) from err
        except LoadFailed as err:
            raise Refused([self._in_words(str(err), models)]) from err
        except OSError as err:
            raise Refused([f"{', '.join(models)}: the folder cannot be copied: {err}"]) from err
        except Refused as err:
            raise Refused([self._in_words(reason, models) for reason in err.reasons]) from err

    def _in_words(self, reason: str, models: Models) -> str:
        for name, model in models.items():
            for ours in (self.live.copy_of(name, model), self.live.path(model)):
                reason = reason.replace(str(ours), model.source)
            reason = reason.replace(f"'{model.triton_name}'", f"'{name}'")
        return reason

    def _load(self, models: Models, names: Mapping[str, str]) -> None:
        """With those names for the parts of ensembles; raises Refused, TritonUnavailable."""
        for model in models.values():
            config = read_config(self.live.path(model), self.settings.device)
            config.name = ""
            for step in config.ensemble_scheduling.step:
                step.model_name = names.get(step.model_name, step.model_name)
            replace_config(self.live.path(model), written(config))
        for name, model in models.items():
            self.registry.crashes.clear(model.triton_name)
            with _refused(name):
                self.gateway.load(model.triton_name, self.settings.start_timeout)

    def _ask(self, name: str, model: LiveModel) -> None:
        with _refused(name):
            served = self.registry.load(name, self.live.path(model), model.triton_name)
            if served.client_error:
                raise LoadFailed(served.client_error)
            try:
                try_example(self.inference, served)
            except InferenceFailed as err:
                raise LoadFailed(f"{err} {_place(err.__cause__)}".strip()) from err
            except BackendDied as err:
                raise LoadFailed(f"a process of it died when its example was asked ({err.details})") from err

    def _refuse(self, state: dict[str, str], reasons: list[str]) -> None:
        table = self.live.table()
        for reason in reasons:
            log.error("%s; what was served before stays", reason)
        others = [each for each in table.refused if not state.keys() & each.folders.keys()]
        self.live.write(replace(table, refused=[*others, Refusal(state, reasons)]))

    def _drop(self, triton_name: str) -> None:
        states = {entry.state for entry in self.gateway.index() if entry.name == triton_name}
        if "READY" in states:
            self._unloading[triton_name] = time.monotonic()
            self.gateway.unload(triton_name)
        elif not states & {"LOADING", "UNLOADING"}:
            self._unloading.pop(triton_name, None)
            self.live.hide(triton_name)
            self.registry.crashes.clear(triton_name)
        elif time.monotonic() > self._unloading.setdefault(triton_name, time.monotonic()) + HANGS_AFTER:
            log.warning("%s: a process of what was tried or served has died; unloading it once more", triton_name)
            with suppress(ServingError):  # as inference/keeper.py does: the next look unloads it
                self.gateway.load(triton_name, self.settings.start_timeout)
            self._unloading[triton_name] = time.monotonic()

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
        self._home_at = time.monotonic() + HOME_PAUSE
        home = {name: replace(model, triton_name=name) for name, model in away.items()}
        try:
            for name, model in home.items():
                config = (self.live.path(away[name]) / CONFIG).read_text(encoding="utf-8")
                self.live.hide(name)
                self.live.show(name, model, config)
            self._load(home, {model.triton_name: name for name, model in away.items()})
        except Refused as err:
            self._home_at, self._fits = 0.0 if self._fits else self._home_at, False
            known_as = ", ".join(model.triton_name for model in away.values())
            log.warning("%s; it is served all the same, but Triton knows it as %s", err, known_as)
            return
        table = self.live.table()
        self.live.write(replace(table, models={**table.models, **home}))
        self._home_at, self._fits = 0.0, True


def _place(cause: BaseException | None) -> str:
    """What a client's code raised, and where."""
    calls = traceback.extract_tb(cause.__traceback__) if cause else []
    return (
        f"[{type(cause).__name__}: {cause}, {Path(calls[-1].filename).name} line {calls[-1].lineno}]" if calls else ""
    )


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """A ServingError as Refused, except that there is no tritonserver."""
    try:
        yield
    except TritonUnavailable:
        raise
    except ServingError as err:
        text = str(err)
        raise Refused([text if f"'{name}'" in text else f"{name}: {text}"]) from err
