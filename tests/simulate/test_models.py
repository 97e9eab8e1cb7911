"""Tests multi-model endpoints: archives in a folder that stands in for S3 are loaded at their first
call, and others are evicted for them."""

import json
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.simulate.simulation import PLATFORMS_PINGS, Simulation, make_tar
from tests.support.archives import files_of, share_for
from tests.support.harness import ROOT, tensor

pytestmark = pytest.mark.stack

ARCHIVES, ROOM, CALLERS = 16, 8, 4
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make archives, each with a model of Triton's Python backend that multiplies by its number."""
    folder = tmp_path_factory.mktemp("store")
    for number in range(ARCHIVES):
        make_tar(folder / archive(number), files_of(number))
    return folder


def archive(number: int) -> str:
    return f"team/multiply-{number}.tar.gz"


def multiply(simulation: Simulation, number: int, x: float) -> float:
    one = tensor([x])
    body = json.dumps({"inputs": [one]}).encode()
    reply = simulation.invoke(body, TargetModel=archive(number), ContentType="application/json")
    return float(json.loads(reply["Body"].read())["outputs"][0]["data"][0])


def wrong_answers(simulation: Simulation, numbers: Iterable[int]) -> list[tuple[int, float]]:
    with ThreadPoolExecutor(CALLERS) as threads:
        answers = threads.map(lambda number: (number, multiply(simulation, number, 3.0)), numbers)
        return [(number, answer) for number, answer in answers if answer != 3.0 * number]


def called() -> list[int]:
    """Yield every model, and in between the first ones again and again."""
    generator = random.Random(1)
    return [each for number in range(ARCHIVES) for each in (number, generator.randrange(4))]


def test_answer_for_twice_as_many_archives_as_there_is_room_for(store: Path) -> None:
    own = {"SERVE_MODEL_MEMORY_SHARE": str(share_for(ROOM)), "SERVE_LOG_LEVEL": "warning"}
    with Simulation(
        ROOT / "serve", models=store, limits=PLATFORMS_PINGS, environment=own
    ) as simulation:
        assert wrong_answers(simulation, called()) == []
        counts = simulation.journal.counts
        assert counts["answers of 507"] > 0
        assert counts["evictions for a 507"] >= 3
        assert counts["loads"] >= ARCHIVES
    assert simulation.journal.complaints.total() == 0, simulation.journal.summary()


def plain(simulation: Simulation, target: str, **arguments: Any) -> str:
    """Return the answer of the stand-in container: the name of the archive that it received with
    the load."""
    return str(simulation.invoke(TargetModel=target, **arguments)["Body"].read().decode())


def test_evict_models_to_stay_within_the_share_of_memory(store: Path) -> None:
    with Simulation(
        models=store, memory=1000 * MEGABYTE, limits={"memory-share": 0.2}, HOLDS="30"
    ) as simulation:
        for number in [*range(12), 11, 10, 9]:
            assert plain(simulation, archive(number)) == archive(number)
        counts = simulation.journal.counts
        # 200 MB hold about 6 models and Python itself
        assert 4 <= counts["evictions for the memory share"] <= 8
        assert (counts["loads"], counts["answers of 507"]) == (12, 0)


def test_evict_the_least_recently_used_model_first(store: Path) -> None:
    with Simulation(models=store, CAPACITY="2") as simulation:
        for number in (0, 1, 0, 2, 0):
            assert plain(simulation, archive(number)) == archive(number)
        assert simulation.journal.counts["loads"] == 3
        plain(simulation, archive(1))
        assert simulation.journal.counts["loads"] == 4


def test_make_room_after_a_call_that_got_507(store: Path) -> None:
    with Simulation(models=store) as simulation:
        plain(simulation, archive(0))
        assert plain(simulation, archive(1), CustomAttributes="No-Room") == archive(1)
        assert simulation.journal.counts["evictions for a 507"] == 1


def test_answer_a_model_error_for_a_model_that_never_fits(store: Path) -> None:
    with Simulation(models=store, CAPACITY="0") as simulation:
        with pytest.raises(ClientError) as caught:
            plain(simulation, archive(0))
        response: Any = caught.value.response
        assert (response["OriginalStatusCode"], response["OriginalMessage"]) == (507, "no room")


def test_refuse_a_missing_or_unknown_target_model(store: Path) -> None:
    with Simulation(models=store) as simulation:
        targets = ("absent.tar.gz", "../store.tar.gz", "/etc/passwd", "team")
        for named in ({}, *({"TargetModel": target} for target in targets)):
            with pytest.raises(ClientError) as caught:
                simulation.invoke(b"", **named)
            assert caught.value.response["Error"]["Code"] == "ValidationError"


def test_unpack_an_archive_and_remove_it_with_its_model(store: Path) -> None:
    with Simulation(models=store, CAPACITY="1") as simulation:
        folder = simulation.endpoint.launch.folder
        plain(simulation, archive(0))
        (first,) = folder.glob("1/models/*/model/multiply/config.pbtxt")
        plain(simulation, archive(1))
        (second,) = folder.glob("1/models/*/model/multiply/config.pbtxt")
        assert first != second
