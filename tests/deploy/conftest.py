"""Provides a simulated AWS account for each test."""

from collections.abc import Iterator

import pytest

from tests.support.account import Account, account


@pytest.fixture
def aws() -> Iterator[Account]:
    with account() as simulated:
        yield simulated
