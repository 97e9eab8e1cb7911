"""Photos of scikit-image, from its wheel, which `make dev` unpacks and nothing imports."""

import io
import sys
from pathlib import Path

from PIL import Image

REFERENCES = Path(sys.prefix) / "references"


def photo(name: str) -> Image.Image:
    return Image.open(REFERENCES / f"skimage/data/{name}.png").convert("RGB")


def png(name: str) -> bytes:
    """The photo as a file that a caller would post."""
    buffer = io.BytesIO()
    photo(name).save(buffer, "png")
    return buffer.getvalue()
