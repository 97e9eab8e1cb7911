"""The policy for folders that change."""

from pathlib import Path

import pytest

from serving.model_lifecycle.on_change import Rejected

pytestmark = pytest.mark.unit


def test_name_the_folder_of_the_author_in_each_mistake() -> None:
    copied = Rejected("a: /run/1/a/config.pbtxt is wrong", "b: /run/1/b has no version")
    assert copied.in_folder(Path("/run/1"), Path("/models")).args == (
        "a: /models/a/config.pbtxt is wrong",
        "b: /models/b has no version",
    )
