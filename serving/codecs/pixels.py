"""Convert images: any of Pillow's modes to RGB, and RGB to a JPEG or PNG file."""

from io import BytesIO

import numpy as np
from PIL import Image

from serving.errors import DecodingError

STRIP_PIXELS = 2**20  # converted at a time, because a pixel takes up to 16 bytes on its way
LONGEST_JPEG = 65_500  # libjpeg's JPEG_MAX_DIMENSION


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB: transparency laid on white, CMYK and palettes converted.

    Levels above 255 of a 16-bit grey image become 255, as in Pillow's convert and so in transformers' pipelines.
    """
    result = Image.new("RGB", image.size)
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        result.paste(_strip_to_rgb(strip), (0, top))
    return result


def _strip_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode[0] in "IF":  # a copy without its info, because Pillow knows no transparency of these modes
        return Image.fromarray(np.asarray(image).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def encode_image(image: Image.Image, media_type: str) -> bytes:
    """Return the file: image/jpeg (quality 90) or image/png. Raise DecodingError for an image that JPEG cannot hold."""
    if media_type != "image/png" and max(image.size) > LONGEST_JPEG:
        raise DecodingError(
            f"a picture of {image.width}×{image.height} pixels cannot be a JPEG, whose sides have at most "
            f"{LONGEST_JPEG}: ask for image/png",
            instance=0,
        )
    buffer = BytesIO()
    if media_type == "image/png":
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
