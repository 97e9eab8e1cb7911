"""GET /models while models come and go."""

import pytest

from predictor import create_app
from serving.settings.table import Settings
from serving.triton.gateway import IndexEntry, TritonGateway

pytestmark = pytest.mark.unit


def test_a_model_that_goes_while_the_others_are_described_is_listed_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["goes", "stays"]

    def index(gateway: TritonGateway) -> list[IndexEntry]:
        found = [IndexEntry(name, "1", "UNAVAILABLE", "not loaded") for name in names]
        names[:] = ["stays"]
        return found

    monkeypatch.setattr(TritonGateway, "index", index)
    reply = create_app(Settings.from_env({})).test_client().get("/models")
    listed = {model["name"]: model for model in reply.get_json()["models"]}
    assert listed.keys() == {"goes", "stays"}
    assert listed["goes"]["versions"] == [{"version": "1", "state": "UNAVAILABLE", "reason": "not loaded"}]
    assert listed["goes"]["error"].startswith("there is no model 'goes'")
