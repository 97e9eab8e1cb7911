"""What `serve` does before tritonserver begins: stage every model, and write the first table.

tritonserver loads all that is staged at each of its starts, before it listens.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from serving.errors import LoadFailed
from serving.host.tritonserver import backend_directory
from serving.models.store import Store, copy, signature
from serving.models.table import Entry, Models, Refusal, Table
from serving.repository.facts import Facts
from serving.settings.table import Settings


class AtStart:
    """Models that were loaded at the start stay as they are."""

    def __init__(self, manager: object) -> None:
        """It asks the manager for nothing."""

    def begin(self) -> None:
        """There is nothing to take up."""

    def step(self, asked: bool) -> bool:
        return True

    def failed(self, entries: list[Entry]) -> None:
        """Such a model is named by /ping, with the reason: a start ends with it."""


def stage(settings: Settings, folders: Mapping[str, Path], facts: Facts) -> Facts:
    """Stage the models, and write the table. A model that cannot be staged is added to `unreadable`; if folders are
    watched, the start goes on without it. Raise OSError."""
    store = Store(settings.staged_folder, settings, backend_directory())
    entries, refused, unreadable = dict[str, Entry](), list[Refusal](), list[str]()
    for slot, (name, folder) in enumerate(folders.items()):
        load, source, found = secrets.token_hex(8), folder, ""
        try:
            if settings.reloads:
                found = signature(source)
                copy(source, folder := settings.copies_folder / load / name)
            store.stage(folder, name)
        except LoadFailed as err:
            store.remove(name)
            text = str(err).replace(str(folder), str(source))
            unreadable.append(text)
            refused.append(Refusal({name: found}, [text]))
            continue
        parts = facts.models[name].parts
        entries[name] = Entry(
            name, name, str(folder), load, slot, parts=parts, signature=found, source=str(source) if found else ""
        )
    Table(settings.table_file).write(Models(entries, tuple(refused if settings.reloads else ())))
    if not settings.reloads:
        return replace(facts, unreadable=(*facts.unreadable, *unreadable))
    lines = (f"{each}; the start goes on without it" for each in unreadable)
    return replace(facts, unreadable=(), warnings=(*facts.warnings, *lines))
