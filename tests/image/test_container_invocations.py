"""tests/endpoint/test_invocations.py against a container."""

from tests.endpoint.test_invocations import *  # noqa: F403
