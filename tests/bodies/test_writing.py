"""Tests that a client's predictions become CSV."""

import numpy as np
import pytest

from serving.bodies.writing import predictions_as_csv

pytestmark = pytest.mark.unit


def test_write_numpy_numbers_like_python_numbers() -> None:
    with_numpy = {
        "name": "a,b",
        "score": np.float32(0.5),
        "count": np.int64(3),
        "known": np.bool_(True),
        "vector": np.array([1.0, 2.5]),
    }
    with_python = {"name": "a,b", "score": 0.5, "count": 3, "known": True, "vector": [1.0, 2.5]}
    expected = b'"a,b",0.5,3,true,1.0,2.5\n'
    assert predictions_as_csv([with_numpy]) == predictions_as_csv([with_python]) == expected
