"""Stage every model before tritonserver begins, and write the first table.

tritonserver loads all that is staged at each of its starts, before it listens. From then on only the model manager
changes what is staged.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.tritonserver import backend_directory
from serving.model_status.shared_files import Table
from serving.model_status.table import Entry, Models, Rejection
from serving.repository.layout import Facts
from serving.repository.model_config import shared_clients
from serving.repository.store import Store, copy_model, signature
from serving.settings.table import Settings


def stage(
    settings: Settings,
    folders: Mapping[str, Path],
    configs: Mapping[str, Any],
    unreadable: Mapping[str, str],
    facts: Facts,
) -> Facts:
    """Stage the models with their `configs`, and write the table. A model that cannot be staged joins the `unreadable`;
    if folders are watched, the start goes on without it. Raise OSError."""
    store = Store(settings.staged_folder, settings, backend_directory())
    entries, refused, signatures = dict[str, Entry](), dict(unreadable), dict.fromkeys(folders, "")
    for column, (name, folder) in enumerate(folders.items()):
        load, served, config = secrets.token_hex(8), folder, configs[name]
        if settings.reloads:
            signatures[name] = signature(folder, clients := shared_clients(folder, config))
        if name in refused:
            continue
        if settings.reloads:
            copy_model(folder, served := settings.copies_folder / load / name, clients)
            config = None  # the copy's is read: the folder may have changed
        try:
            store.stage(served, name, config=config)
        except ConfigError as err:
            refused[name] = str(err).replace(str(served), str(folder))
            continue
        entries[name] = Entry(
            name, name, str(served), load, column,
            parts=facts.models[name].parts, signature=signatures[name], source=str(folder) if settings.reloads else "",
        )  # fmt: skip
    rejected = tuple(Rejection({name: signatures[name]}, [text]) for name, text in refused.items())
    Table(settings.table_file).write(Models(entries, rejected))
    if not settings.reloads:
        return replace(facts, unreadable=tuple(refused.values()))
    lines = (f"{text}; the start goes on without it" for text in refused.values())
    return replace(facts, unreadable=(), warnings=(*facts.warnings, *lines))
