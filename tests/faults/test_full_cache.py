"""Tests a full disk for the unpacked archives of on-demand models."""

from pathlib import Path

import pytest

from tests.model_lifecycle.test_on_demand import answer, call, pack
from tests.support.harness import Server, expect_error, wait_until

pytestmark = pytest.mark.full

DISK_MB, MODEL_MB = 64, 40  # one model fits on the disk, two do not
WEIGHTS = {"multiply/weights": "0" * MODEL_MB * 2**20}


class OnSmallDisk(Server):
    """Runs a server with a small file system for unpacked archives. Requires root."""

    prefix = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mkdir -p $SERVE_RUN_DIR/unpacked && "
        f"mount -t tmpfs -o size={DISK_MB}m none $SERVE_RUN_DIR/unpacked && "
        'exec "$0" "$@"',
    )


def test_say_that_the_disk_is_full_and_remove_models_that_are_not_loaded(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for number in (1, 2):
        pack(repository, number, **WEIGHTS)
    settings = {"SERVE_MODELS": "on-demand", "SERVE_UNPACKED_MB": "1000"}
    server = OnSmallDisk(tmp_path, repository, **settings).wait_ready()
    assert answer(call(server, "m1")) == [2.0]
    expect_error(call(server, "m2"), 503, "model_failed", "the disk has")
    assert server.ping() == 200
    assert answer(call(server, "m1")) == [2.0]
    assert server.ask("DELETE", "/models/m1").status_code == 200
    pack(repository, 2, **WEIGHTS)  # a changed archive, which is tried again at once
    wait_until(lambda: call(server, "m2").status_code == 200, "m2 is loaded in place of m1")
    server.stop_later()
