"""tests/test_invocations.py against a container."""

from tests.test_invocations import *  # noqa: F403
