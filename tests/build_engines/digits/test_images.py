"""The pictures of single digits."""

import numpy as np

from build_engines.digits.images import MIN_CONTRAST, SIDES, held_out, render, training
from build_engines.digits.scans import split


def test_the_same_seed_gives_the_same_pictures_and_the_first_are_those_of_all() -> None:
    few, more = held_out(3), held_out(6)
    assert [label for _, label in few] == [label for _, label in more[:3]]
    for (one, _), (other, _) in zip(few, more, strict=False):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_the_held_out_pictures_are_the_whole_held_out_fifth() -> None:
    labels = [label for _, label in held_out()]
    assert labels == split()[1][1].tolist()
    assert len(labels) == 1797 // 5


def test_training_and_held_out_scans_do_not_overlap() -> None:
    """By the scan's place in scikit-learn's file; a few scans of different writers are equal to the pixel."""
    (learned, _), (kept, _) = split()
    assert len(learned) + len(kept) == 1797
    seen = {scan.tobytes() for scan in learned}
    assert sum(scan.tobytes() in seen for scan in kept) <= 1


def test_each_round_of_training_renders_every_digit_anew() -> None:
    first, second = next(training(0)), next(training(1))
    assert first[1] == second[1]
    assert first[0].size != second[0].size


def test_pictures_are_rgb_of_any_size_dark_on_light_and_light_on_dark() -> None:
    images = [image for image, _ in held_out(120)]
    sides = np.array([image.size for image in images])
    assert {image.mode for image in images} == {"RGB"}
    assert SIDES[0] <= sides.min() < 40
    assert 450 < sides.max() <= SIDES[1]
    assert np.mean(sides[:, 0] != sides[:, 1]) > 0.5


def test_ink_and_paper_differ_enough_to_be_seen_either_way_round() -> None:
    """A scan of nothing but ink in its middle: the picture's darkest and lightest parts are far apart."""
    scan = np.zeros((8, 8), np.uint8)
    scan[1:7, 1:7] = 255
    darker = 0
    for seed in range(40):
        grey = np.asarray(render(scan, np.random.default_rng(seed)).convert("L"), np.float64)
        low, high = np.percentile(grey, [2, 98])
        assert high - low > MIN_CONTRAST / 2
        darker += np.median(np.concatenate([grey[0], grey[-1]])) > (low + high) / 2
    assert 10 <= darker <= 30
