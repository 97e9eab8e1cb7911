"""What lies in the model repositories, and which of it is not what is served."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from serving.repository.layout import folders_in, is_model
from serving.repository.live import Table, signature
from serving.settings.table import Settings


@dataclass(frozen=True)
class Found:
    """A model folder, and its signature (repository/live.py)."""

    folder: Path
    signature: str


def models_in(repositories: Sequence[Path]) -> dict[str, Found]:
    """By name. Raises OSError: a repository that cannot be read has not lost its models."""
    paths = [path for repository in repositories for path in folders_in(repository)]
    return {path.name: Found(path, signature(path)) for path in reversed(paths) if _is_model(path)}


def _is_model(folder: Path) -> bool:
    try:
        return is_model(folder)
    except OSError:  # being removed
        return False


@dataclass(frozen=True)
class Folders:
    """The models that lie there (`seen`) beside those that are served."""

    settings: Settings
    table: Table
    seen: Mapping[str, Found]

    def units(self) -> Iterator[set[str]]:
        """Models that belong together, for one calls another, and of which one has changed, came or went."""
        left = self.changed()
        while left:
            unit = {left.pop()}
            while more := {other for name in unit for other in self._linked(name)} - unit:
                unit |= more
            left -= unit
            yield unit

    def changed(self) -> set[str]:
        """As far as they are to be served; those that are to be no more, too."""
        return {name for name in self.wanted | self.table.models.keys() if self._has_changed(name)}

    def _has_changed(self, name: str) -> bool:
        served = self.table.models.get(name)
        if name not in self.wanted or not served:
            return True
        return self.seen[name] != Found(Path(served.source), served.signature)

    @cached_property
    def wanted(self) -> set[str]:
        """As at a start (preparation/survey.py): what is named and what that calls, or all."""
        named = [*self.settings.load_models, *filter(None, [self.settings.default_model])]
        left, found = set(named or self.seen) & self.seen.keys(), set[str]()
        while left:
            name = left.pop()
            found.add(name)
            left |= set(self.parts[name]) & self.seen.keys() - found
        return found

    @cached_property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """What each model that lies there calls."""
        return {name: self._parts(found.folder) for name, found in self.seen.items()}

    def _parts(self, folder: Path) -> tuple[str, ...]:
        from serving.repository.model_config import Unreadable, parts_of, read_config

        try:
            return tuple(parts_of(read_config(folder, self.settings.device)))
        except Unreadable:  # which is told when it is checked
            return ()

    def _linked(self, name: str) -> set[str]:
        """Those that it calls or is called by, now or before."""
        return {other for pair in self._pairs if name in pair for other in pair}

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        now = [(name, part) for name in self.wanted for part in self.parts[name]]
        before = [(name, part) for name, model in self.table.models.items() for part in model.parts]
        known = self.wanted | self.table.models.keys()
        return [pair for pair in (*now, *before) if known.issuperset(pair)]
