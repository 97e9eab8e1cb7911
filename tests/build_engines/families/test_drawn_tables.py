"""Tests that randomly drawn pipelines give the same predictions as their libraries, for every
row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build_engines.drawn import PIPELINES, Drawn, drawn
from tests.build_engines.families.test_table import answered, built

pytestmark = pytest.mark.unit

SEED = 40


def check_answers(pipeline: Drawn, predictions: list[Any]) -> None:
    """Assert that labels are equal, and that numbers differ by at most a millionth of their
    spread."""
    model, rows = pipeline.model, pipeline.rows
    got = [each["prediction"] for each in predictions]
    if not hasattr(model, "classes_"):
        wanted = model.predict(rows)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.ptp(wanted))
        return
    assert got == model.predict(rows).tolist()
    shares = [list(each["probabilities"].values()) for each in predictions]
    np.testing.assert_allclose(shares, model.predict_proba(rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize("number", range(PIPELINES))
def test_get_the_answers_of_the_library_from_a_drawn_pipeline(number: int, tmp_path: Path) -> None:
    pipeline = drawn(SEED, number)
    check_answers(pipeline, answered(built(tmp_path, pipeline.model), pipeline.lists))
