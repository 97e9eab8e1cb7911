"""Tests the policy for model folders that change."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_change import OnChange
from serving.model_status.models import Entry
from serving.model_status.states import Event
from serving.settings.settings import Settings
from tests.model_lifecycle.test_recovery import FakeTriton

pytestmark = pytest.mark.unit


def test_remove_copies_a_while_after_no_model_is_served_from_them(tmp_path: Path) -> None:
    manager = Manager(replace(Settings(), run_dir=tmp_path, workers=1), FakeTriton())
    policy = OnChange(manager)
    for name in ("served", "old", "new"):
        (tmp_path / "copies" / name / "net").mkdir(parents=True)
    for name in ("served", "old"):
        os.utime(tmp_path / "copies" / name, (0, 0))
    entry = Entry("net", "net", str(tmp_path / "copies/served/net"), "load", 0)
    manager.move(entry, Event.SERVE)
    policy._remove_copies()
    manager.move(entry, Event.REMOVE)
    policy._remove_copies()
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {"served", "new"}
