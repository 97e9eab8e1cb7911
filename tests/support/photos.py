"""Photos of the package scikit-image, which is installed without what it imports."""

import io
from importlib import metadata

from PIL import Image


def photo(name: str) -> Image.Image:
    file = metadata.distribution("scikit-image").locate_file(f"skimage/data/{name}.png")
    return Image.open(str(file)).convert("RGB")


def png(name: str) -> bytes:
    """The photo as a file that a caller would post."""
    buffer = io.BytesIO()
    photo(name).save(buffer, "png")
    return buffer.getvalue()
