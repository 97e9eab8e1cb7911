"""Average precision and cosine, against worked examples and a plain reference."""

import numpy as np
import pytest

from build_engines.measurement.scoring import (
    Boxes,
    average_precision,
    boxes_of,
    cosine,
    mean_average_precision,
    overlaps,
)


def boxes(*rows: tuple[float, ...]) -> Boxes:
    """Rows of x1, y1, x2, y2, class, score."""
    table = np.array(rows, float).reshape(-1, 6)
    return Boxes(table[:, :4], table[:, 4].astype(int), table[:, 5])


def test_average_precision_is_cocos() -> None:
    # precision 1 up to recall 1/4 (26 points), 2/3 up to 2/4 (25 points), 0 beyond (50 points)
    assert average_precision(np.array([True, False, True, False]), 4) == pytest.approx((26 + 25 * 2 / 3) / 101)
    assert average_precision(np.array([], bool), 3) == 0


def test_a_perfect_detector_has_1_and_an_empty_one_0() -> None:
    truths = [boxes((0, 0, 10, 10, 1, 1), (20, 20, 30, 30, 2, 1)), boxes((5, 5, 9, 9, 1, 1)), boxes()]
    assert mean_average_precision(truths, truths) == (1.0, 1.0)
    assert mean_average_precision([boxes(), boxes(), boxes()], truths) == (0.0, 0.0)


def test_a_shifted_box_counts_up_to_its_overlap() -> None:
    truths, found = [boxes((0, 0, 10, 10, 0, 1))], [boxes((0, 0, 10, 7.2, 0, 0.9))]  # IoU 0.72
    map50, map50_95 = mean_average_precision(found, truths)
    assert map50 == 1.0
    assert map50_95 == pytest.approx(0.5)  # 0.50 to 0.70 of ten thresholds


def test_a_truth_is_found_once_and_the_better_score_has_it() -> None:
    truths = [boxes((0, 0, 10, 10, 0, 1))]
    twice = [boxes((0, 0, 10, 10, 0, 0.5), (0, 0, 10, 9, 0, 0.9))]
    assert mean_average_precision(twice, truths)[0] == 1.0  # the second comes first, the other is false but behind
    first_false = [boxes((0, 0, 10, 10, 0, 0.5), (50, 50, 60, 60, 0, 0.9))]
    assert mean_average_precision(first_false, truths)[0] == pytest.approx(0.5)


def test_another_class_is_no_hit() -> None:
    assert mean_average_precision([boxes((0, 0, 10, 10, 1, 1))], [boxes((0, 0, 10, 10, 0, 1))]) == (0.0, 0.0)


def test_overlaps_are_intersection_over_union() -> None:
    found = overlaps(boxes((0, 0, 4, 4, 0, 1), (2, 2, 2, 2, 0, 1)).corners, boxes((2, 0, 6, 4, 0, 1)).corners)
    assert found.tolist() == [[pytest.approx(8 / 24)], [0.0]]


def test_the_cosine_is_the_mean_over_rows() -> None:
    assert cosine(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 2.0], [3.0, 3.0]])) == pytest.approx(0.5)
    assert cosine(np.zeros((1, 4)), np.zeros((1, 4))) == 1.0


def test_the_clients_detections_are_read() -> None:
    found = boxes_of([{"class_id": 3, "score": 0.5, "box": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}}])
    assert (found.corners.tolist(), found.classes.tolist(), found.scores.tolist()) == ([[1, 2, 3, 4]], [3], [0.5])
    assert boxes_of([]).corners.shape == (0, 4)
