"""tests/test_errors.py against a container."""

from tests.test_errors import *  # noqa: F403
