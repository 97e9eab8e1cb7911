"""Tests how the manager treats a worker's answer to a model's example."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import ModelFailed, Overloaded, ServingError
from serving.model_lifecycle.examples import Examples
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.policy import AtStart
from serving.model_status.models import Entry
from serving.model_status.states import FAILED, READY, Event
from serving.settings.settings import Settings
from tests.model_lifecycle.test_recovery import FakeTriton

pytestmark = pytest.mark.unit


class Asked(Examples):
    """A worker that answers with each of `errors` in turn; None means 200. If `restarts` is true,
    tritonserver is replaced in between."""

    def __init__(self, folder: Path, *errors: Exception | None, restarts: bool = False) -> None:
        manager = Manager(replace(Settings(), run_dir=folder, workers=1), FakeTriton())
        manager.move(Entry("m", "m", "", "load", 0), Event.SERVE)
        super().__init__(manager, AtStart(manager))
        self.errors, self.restarts = list(errors), restarts

    def _ask(self, name: str) -> None:
        if self.restarts:
            self.manager.write(lambda models: replace(models, server=models.server + 1))
        if error := self.errors.pop(0):
            raise error

    def entry(self) -> Entry:
        return self.manager.models().entries["m"]


@pytest.mark.parametrize(
    "error", [Overloaded("busy"), ServingError("a bug of the client"), ConnectionRefusedError()]
)
def test_send_the_example_again_without_a_verdict(tmp_path: Path, error: Exception) -> None:
    asked = Asked(tmp_path, error, None)
    assert asked.step() > 0
    assert (asked.entry().state, asked.entry().answered, asked.manager.models().was_ready) == (
        READY,
        False,
        False,
    )
    assert asked.step() == 0
    assert (asked.entry().answered, asked.entry().reason, asked.manager.models().was_ready) == (
        True,
        "",
        True,
    )


def test_refuse_to_serve_a_model_that_fails_on_its_example(tmp_path: Path) -> None:
    asked = Asked(tmp_path, ModelFailed("m", "no"))
    assert asked.step() == 0
    assert (asked.entry().state, asked.entry().reason) == (FAILED, "no")
    assert asked.step() == 0 and not asked.manager.models().was_ready


def test_ignore_an_answer_of_the_previous_tritonserver(tmp_path: Path) -> None:
    asked = Asked(tmp_path, None, restarts=True)
    asked.step()
    assert not asked.entry().answered
