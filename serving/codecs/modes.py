"""The modes of Pillow's images become RGB."""

import numpy as np
from PIL import Image

STRIP_PIXELS = 2**20  # what is converted at a time


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode -> RGB: transparency laid on white, CMYK and palettes converted.

    Levels above 255 of a 16-bit grey image become 255, as Pillow's convert and with it transformers' pipelines have it.

    In strips, for on its way a pixel takes up to 16 bytes.
    """
    result = Image.new("RGB", image.size)
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        result.paste(_strip_to_rgb(strip), (0, top))
    return result


def _strip_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode[0] in "IF":  # a copy without its info, since Pillow knows no transparency of these modes
        return Image.fromarray(np.asarray(image).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")
