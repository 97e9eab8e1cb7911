"""How an image gets the size that a network takes: one function for each value of the setting `resize`.

Each takes the image, the network's (height, width), and the client's settings, `resize_to` among them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from serving.errors import DecodingError

Size = tuple[int, int]  # height, width
Box = tuple[float, float, float, float]

KEEP_RATIO = "keep_ratio"  # the resize that gives each image a size of its own
RIBBON = 16  # longer side / shorter side; to resize such an image before cropping would take gigabytes
STEPS = ("nearest", "box")  # the interpolations that jump: where rounding differs, so does a pixel
INTERPOLATIONS = {method.name.lower(): method for method in Image.Resampling}


def keeps_ratio(settings: Mapping[str, Any]) -> bool:
    """Whether each image keeps its proportions, and so has a size of its own: no batch, and no engine for one size."""
    return settings.get("resize") == KEEP_RATIO


def _shortest(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    """Covers size / crop_pct, then crops the centre: the rule of torchvision and transformers for ImageNet."""
    height, width = options["resize_to"]
    if width * image.height >= height * image.width:
        covering = (width * image.height // image.width, width)
    else:
        covering = (height, height * image.width // image.height)
    cut = _centre(covering, size)
    whole = options["exact"] or options["interpolation"] in STEPS
    if not whole or max(covering[0] / height, covering[1] / width) > RIBBON:
        return _resample(image, size, options, _source_box(image, covering, cut))
    return _resample(image, covering, options).crop(cut)


def _centre(outer: Size, size: Size) -> tuple[int, int, int, int]:
    top, left = ((long - side) // 2 for long, side in zip(outer, size, strict=True))
    return (left, top, left + size[1], top + size[0])


def _source_box(image: Image.Image, covering: Size, cut: tuple[int, int, int, int]) -> Box:
    """The box in the original image that becomes `cut` of the resized one, so that Pillow computes only the cut: two
    thirds of the time. Its rounding then differs by less than torchvision's two ways do."""
    x, y = image.width / covering[1], image.height / covering[0]
    return (cut[0] * x, cut[1] * y, min(cut[2] * x, image.width), min(cut[3] * y, image.height))


def _stretch(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    return _resample(image, options["resize_to"], options).crop(_centre(options["resize_to"], size))


def _pad(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    """The whole image, as large as fits, in the middle of a grey background."""
    factor = min(size[0] / image.height, size[1] / image.width)
    height, width = (max(1, round(side * factor)) for side in (image.height, image.width))
    level = options["pad_value"]
    sheet = Image.new(image.mode, size[::-1], level if image.mode == "L" else (level,) * 3)
    sheet.paste(_resample(image, (height, width), options), ((size[1] - width) // 2, (size[0] - height) // 2))
    return sheet


def _keep_ratio(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    """The whole image; DecodingError where a side would be none."""
    (shorter, longer), divisor = options["resize_to"], options["size_divisor"]
    kept = kept_ratio(image.height, image.width, shorter, longer, divisor)
    if min(kept) < 1:
        raise DecodingError(
            f"the image of {image.width}×{image.height} pixels is too narrow: with its longer side at {longer} the "
            f"shorter one would be less than {divisor}; cut it to pieces"
        )
    return _resample(image, kept, options)


def kept_ratio(height: int, width: int, shorter: int, longer: int, divisor: int) -> Size:
    """The size that transformers gives such an image: get_size_with_aspect_ratio, for YOLOS …_yolos."""
    least, share = min(height, width), float(shorter)
    if max(height, width) / least * shorter > longer:
        share = longer * float(least) / max(height, width)
        shorter = round(share)
    if least == shorter and (divisor == 1 or height <= width):  # the order of YOLOS' rule is another
        size = (height, width)
    elif width < height:
        size = (int(share * height / width), shorter)
    else:
        size = (shorter, int(share * width / height))
    return (size[0] - size[0] % divisor, size[1] - size[1] % divisor)


def _resample(image: Image.Image, size: Size, options: Mapping[str, Any], box: Box | None = None) -> Image.Image:
    return image.resize(size[::-1], INTERPOLATIONS[options["interpolation"]], box=box)


RESIZE: dict[str, Callable[[Image.Image, Size, Mapping[str, Any]], Image.Image]] = {
    "shortest": _shortest,
    "stretch": _stretch,
    "pad": _pad,
    KEEP_RATIO: _keep_ratio,
}
