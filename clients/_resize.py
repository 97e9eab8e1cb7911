"""Resizes a whole image, for detectors, segmenters and encoders: pads it to a size, or keeps its
proportions."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from PIL import Image

from clients._input import INTERPOLATIONS, Frame, keeps_ratio
from serving.errors import DecodingError


def whole(frame: Frame, options: Mapping[str, Any]) -> Callable[[Image.Image], Image.Image]:
    """Return the function that resizes an image by the setting `resize`, which is pad or
    keep_ratio."""
    method = INTERPOLATIONS[options["interpolation"]]
    if keeps_ratio(options):
        shorter, longer = frame.resized
        return partial(
            keep_ratio,
            shorter=shorter,
            longer=longer,
            divisor=options["size_divisor"],
            method=method,
        )
    return partial(pad, size=frame.size, level=options["pad_value"], method=method)


def pad(
    image: Image.Image, size: tuple[int, int], level: int, method: Image.Resampling
) -> Image.Image:
    """Put the image, as large as fits, in the middle of a background of this grey `level`."""
    target_height, target_width = size
    factor = min(target_height / image.height, target_width / image.width)
    height = max(1, round(image.height * factor))
    width = max(1, round(image.width * factor))
    colour = level if image.mode == "L" else (level, level, level)
    sheet = Image.new(image.mode, (target_width, target_height), colour)
    corner = ((target_width - width) // 2, (target_height - height) // 2)
    sheet.paste(image.resize((width, height), method), corner)
    return sheet


def keep_ratio(
    image: Image.Image, shorter: int, longer: int, divisor: int, method: Image.Resampling
) -> Image.Image:
    """Resize the image to the size that `kept_ratio` gives. Raise DecodingError if a side would
    have no pixels."""
    height, width = kept_ratio(image.height, image.width, shorter, longer, divisor)
    if min(height, width) < 1:
        raise DecodingError(
            f"the image of {image.width}×{image.height} pixels is too narrow: with its "
            f"longer side at {longer} the shorter one would be less than {divisor}; cut it "
            "to pieces"
        )
    return image.resize((width, height), method)


def kept_ratio(height: int, width: int, shorter: int, longer: int, divisor: int) -> tuple[int, int]:
    """Return the size to which transformers resizes an image of this size:
    get_size_with_aspect_ratio or, with a divisor, YOLOS' version of it."""
    least = min(height, width)
    share = float(shorter)
    if max(height, width) / least * shorter > longer:
        share = longer * float(least) / max(height, width)
        shorter = round(share)
    # YOLOS' version compares in another order
    if least == shorter and (divisor == 1 or height <= width):
        size = (height, width)
    elif width < height:
        size = (int(share * height / width), shorter)
    else:
        size = (shorter, int(share * width / height))
    first, second = (side - side % divisor for side in size)
    return (first, second)
