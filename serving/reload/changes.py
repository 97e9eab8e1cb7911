"""Has changed models served, so that no call meets a mixture of the old and the new.

    copy -> findings -> load as __NAME -> example -> table: NAME is __NAME -> calls of the old NAME end
    -> load the same copy as NAME, in its place -> table: NAME is NAME -> calls of __NAME end -> unload __NAME

The second half gives the model its own name in Triton again, which gRPC, /v2 and models that call it know. Models that
call each other go this way together. What is left to do follows from the table and from Triton's repository, whoever
did the first part.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from serving.codecs import Limits
from serving.decoding import Decoder
from serving.errors import LoadFailed, TritonUnavailable
from serving.host import tritonserver
from serving.inference.crashes import Crashes
from serving.inference.example import ask_example
from serving.inference.live_registry import LiveRegistry
from serving.inference.service import Inference
from serving.preparation.staging import Staging
from serving.reload.folders import Folders, Found
from serving.reload.loading import Loader, Models, refused
from serving.reload.trial import Refused, examine
from serving.repository.live import SPARE, LiveModel, LiveModels, Refusal, Table, new_load
from serving.settings.table import Settings
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)


class Changes:
    """Of the models of one server; for one thread."""

    def __init__(self, settings: Settings, live: LiveModels, gateway: TritonGateway) -> None:
        self.settings, self.live, self.gateway = settings, live, gateway
        crashes = Crashes(settings.run_dir / "crashes")
        self.registry = LiveRegistry(self.gateway, live, "", crashes)
        self.inference = Inference(self.gateway, Decoder(Limits(settings.max_image_pixels)))
        self.staging = Staging(settings, tritonserver.backend_directory())
        self.loader = Loader(settings, live, gateway, crashes)

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
                self.staging.complete(self.live.path(model))
            self.loader.load(models, {name: model.triton_name for name, model in models.items()})
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

    def _ask(self, name: str, model: LiveModel) -> None:
        with refused(name):
            ask_example(self.inference, self.registry.load(name, self.live.path(model), model.triton_name))

    def _refuse(self, state: dict[str, str], reasons: list[str]) -> None:
        table = self.live.table()
        for reason in reasons:
            log.error("%s; what was served before stays", reason)
        others = [each for each in table.refused if not state.keys() & each.folders.keys()]
        self.live.write(replace(table, refused=[*others, Refusal(state, reasons)]))
