"""The pages strewn with digits, of both generators."""

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from build_engines.digits.held_out_pages import held_out_pages
from build_engines.digits.pages import LARGEST, LETTERBOX, SMALLEST, Page, letterboxed, training_pages
from build_engines.digits.scans import split

GENERATORS = [training_pages, held_out_pages]
Generator = Callable[[int], Iterator[Page]]


@pytest.mark.parametrize("pages", GENERATORS)
def test_pages_are_the_same_for_the_same_seed_and_others_for_another(pages: Generator) -> None:
    first, again, other = (next(pages(seed)) for seed in (3, 3, 4))
    assert first.image.tobytes() == again.image.tobytes()
    assert first.boxes.tolist() == again.boxes.tolist()
    assert first.image.tobytes() != other.image.tobytes()


@pytest.mark.parametrize("pages", GENERATORS)
def test_digits_have_the_sizes_promised_and_lie_on_the_page(pages: Generator) -> None:
    sizes = []
    for image, boxes, labels in islice(pages(0), 25):
        assert image.mode == "RGB"
        assert boxes.shape == (len(labels), 4)
        assert ((boxes >= 0) & (boxes <= np.array([*image.size] * 2))).all()
        sizes += ((boxes[:, 2:] - boxes[:, :2]).max(1, initial=0) * LETTERBOX / max(image.size)).tolist()
        assert set(labels) <= set(range(10))
    assert len(sizes) > 200
    assert min(sizes) > SMALLEST * 0.85
    assert max(sizes) < LARGEST * 1.15
    assert min(sizes) < 20
    assert max(sizes) > 90


def test_the_two_generators_share_no_digit() -> None:
    training, held_out = ({image.tobytes() for image in images} for images, _ in split())
    assert not training & held_out


def test_boxes_enclose_the_ink_tightly() -> None:
    """On pages that are light and calm around the digit, found from the pixels alone."""
    checked = 0
    for image, boxes, _ in islice(held_out_pages(1), 40):
        grey = np.asarray(image.convert("L"), float)
        for x1, y1, x2, y2 in boxes.astype(int):
            margin = grey[max(y1 - 3, 0) : y2 + 3, max(x1 - 3, 0) : x2 + 3]
            frame = np.concatenate((margin[0], margin[-1], margin[:, 0], margin[:, -1]))
            if frame.std() > 1.5 or max(x2 - x1, y2 - y1) < 30 or min(x1, y1) < 3:
                continue
            ink = np.abs(margin - frame.mean()) > 0.4 * np.abs(margin - frame.mean()).max()
            found = [np.where(ink.any(axis))[0] for axis in (0, 1)]
            edges = [found[0][0], found[1][0], found[0][-1] + 1, found[1][-1] + 1]
            np.testing.assert_allclose(edges, [3, 3, x2 - x1 + 3, y2 - y1 + 3], atol=2.5)
            checked += 1
    assert checked > 10


def test_letterboxed_pages_keep_their_digits() -> None:
    page = next(training_pages(0))
    pixels, boxes = letterboxed(page)
    assert pixels.shape == (640, 640, 3)
    x1, y1, x2, y2 = boxes[0].round().astype(int)
    crop = Image.fromarray(pixels[y1:y2, x1:x2])
    original = page.image.crop(tuple(page.boxes[0].astype(int).tolist())).resize(crop.size)
    assert np.abs(np.asarray(crop, float) - np.asarray(original, float)).mean() < 12
