"""A model repository shown with other plans or configurations: a folder of links, for the repository is read-only."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.repository.fingerprint import FILE
from serving.repository.layout import CONFIG, folders_in
from serving.repository.plans import PlanModel


@dataclass(frozen=True)
class Change:
    """What a model's folder is shown with: other plans, by version, or another configuration."""

    model: PlanModel
    plans: Mapping[str, Path] = field(default_factory=dict)
    config: str = ""


def show(target: Path, repository: Path, changes: Mapping[str, Change]) -> None:
    """Makes `target` lead to the repository as it is to be served, in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shown = repository
    if changes:
        shown = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
        for folder in folders_in(repository):
            if change := changes.get(folder.name):
                lay_out(change, shown / folder.name)
            else:
                (shown / folder.name).symlink_to(folder)
    link = target.with_name(f"{target.name}.new")
    link.unlink(missing_ok=True)
    link.symlink_to(shown)
    link.replace(target)


def lay_out(change: Change, target: Path) -> None:
    """A model's folder whose contents are links, but for what changes."""
    target.mkdir()
    hidden = {CONFIG, "configs"} if change.config else set(change.plans)
    _link_all(change.model.folder, target, hidden)
    if change.config:
        (target / CONFIG).write_text(change.config, encoding="utf-8")
    for number, built in change.plans.items():
        (target / number).mkdir()
        _link_all(change.model.folder / number, target / number, {change.model.plan, FILE})
        _link_all(built, target / number, set())


def _link_all(source: Path, target: Path, hidden: set[str]) -> None:
    for entry in source.iterdir():
        if entry.name not in hidden:
            (target / entry.name).symlink_to(entry)
