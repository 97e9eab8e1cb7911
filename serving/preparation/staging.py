"""Stage every model before tritonserver begins, and write the first table.

tritonserver loads all that is staged at each of its starts, before it listens. From then on only the model manager
changes what is staged.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from serving.errors import ConfigError
from serving.host.tritonserver import backend_directory
from serving.models.table import Entry, Models, Rejection, Table
from serving.repository.layout import Facts
from serving.repository.model_config import read_config, shared_clients
from serving.repository.store import Store, copy, signature
from serving.settings.table import Settings


def stage(settings: Settings, folders: Mapping[str, Path], facts: Facts) -> Facts:
    """Stage the models, and write the table. A model that cannot be staged is added to `unreadable`; if folders are
    watched, the start goes on without it. Raise OSError."""
    store = Store(settings.staged_folder, settings, backend_directory())
    entries, refused, unreadable = dict[str, Entry](), list[Rejection](), list[str]()
    for column, (name, folder) in enumerate(folders.items()):
        load, source, found = secrets.token_hex(8), folder, ""
        try:
            if settings.reloads:
                clients = shared_clients(source, read_config(source, settings.device))
                found = signature(source) + (signature(clients) if clients else "")
                copy(source, folder := settings.copies_folder / load / name)
                if clients:
                    copy(clients, folder.parent / clients.name)
            store.stage(folder, name)
        except ConfigError as err:
            store.remove(name)
            text = str(err).replace(str(folder), str(source))
            unreadable.append(text)
            refused.append(Rejection({name: found}, [text]))
            continue
        parts = facts.models[name].parts
        entries[name] = Entry(
            name, name, str(folder), load, column, parts=parts, signature=found, source=str(source) if found else ""
        )
    Table(settings.table_file).write(Models(entries, tuple(refused if settings.reloads else ())))
    if not settings.reloads:
        return replace(facts, unreadable=(*facts.unreadable, *unreadable))
    lines = (f"{each}; the start goes on without it" for each in unreadable)
    return replace(facts, unreadable=(), warnings=(*facts.warnings, *lines))
