"""The sizes that images get, by transformers' own rules."""

import random

import pytest
from PIL import Image
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.models.yolos.image_processing_pil_yolos import get_size_with_aspect_ratio_yolos

from clients._resize import keep_ratio, kept_ratio
from serving.errors import DecodingError

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("shorter", "longer"), [(800, 1333), (64, 96), (1000, 1000), (900, 800)])
def test_an_image_that_keeps_its_proportions_has_the_size_that_transformers_gives_it(shorter: int, longer: int) -> None:
    draw = random.Random(0)
    edges = (shorter, longer - 1, longer, longer + 1)
    for most in (50, 2000, 20000):
        for _ in range(2000):
            size = (draw.choice([*edges, *(draw.randint(1, most) for _ in range(9))]), draw.randint(1, most))
            for given in (size, size[::-1]):
                assert kept_ratio(*given, shorter, longer, 1) == get_size_with_aspect_ratio(given, shorter, longer)
                yolos = get_size_with_aspect_ratio_yolos(given, shorter, longer)
                assert kept_ratio(*given, shorter, longer, 16) == yolos


def test_an_image_too_narrow_for_its_proportions_is_refused_and_the_narrowest_is_not() -> None:
    def resized(width: int) -> Image.Image:
        return keep_ratio(Image.new("RGB", (width, 100)), 64, 96, 16, Image.Resampling.BILINEAR)

    assert resized(600).size == (96, 16)
    with pytest.raises(DecodingError, match="700×100"):
        resized(700)
