"""Folders of links that show a model with other files than its own: repositories and archives are never written to."""

from collections.abc import Mapping
from pathlib import Path

from serving.repository.layout import CONFIG, folders_in


def link_entries(folder: Path, target: Path) -> None:
    """Make `target` a folder with a link to each entry of `folder`."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        (target / entry.name).symlink_to(entry)


def replace_config(shown: Path, text: str) -> None:
    """Gives a model that is shown another configuration."""
    for name in (CONFIG, "configs"):
        (shown / name).unlink(missing_ok=True)
    (shown / CONFIG).write_text(text, encoding="utf-8")


def arrange(repository: Path, target: Path, configs: Mapping[str, str]) -> None:
    """Makes `target` show the repository, those of its models that are in `configs`, by their folder, with that one."""
    target.mkdir(parents=True)
    for folder in folders_in(repository):
        shown = target / folder.name
        if text := configs.get(str(folder)):
            link_entries(folder, shown)
            replace_config(shown, text)
        else:
            shown.symlink_to(folder)
