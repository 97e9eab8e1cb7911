"""tests/endpoint/test_errors.py against a container."""

from tests.endpoint.test_errors import *  # noqa: F403
