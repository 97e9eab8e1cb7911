"""What of tests/endpoint/test_lifecycle.py a container keeps too: a stop loses nothing, a limit is told."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.endpoint.test_lifecycle import (  # noqa: F401
    small,
    test_a_request_that_is_slow_is_finished_before_the_stop,
    test_more_requests_than_the_limit_are_told_to_come_back_while_ping_answers,
    test_sigterm_under_load_loses_no_accepted_request,
)
from tests.image.conftest import Start
from tests.image.container import Container


@pytest.fixture(name="start")
def start_small(start: Start, small: Path) -> Callable[..., Container]:  # noqa: F811
    small.chmod(0o755)
    return lambda **variables: start("--volume", f"{small}:/opt/ml/model:ro", **variables)
