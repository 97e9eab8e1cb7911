"""An image's bytes in JSON, and a picture's in a reply."""

import binascii
from base64 import b64decode
from io import BytesIO

from PIL import Image

from serving.errors import DecodingError

LONGEST_JPEG = 65_500  # libjpeg's JPEG_MAX_DIMENSION
_URL_SAFE = str.maketrans("-_", "+/")


def decode_base64(text: str) -> bytes:
    """Standard or URL-safe base64, padded or not, with or without a `data:…;base64,` prefix and line ends."""
    if text.startswith("data:") and "," in text[:256]:
        text = text.split(",", 1)[1]
    compact = "".join(text.split()).rstrip("=").translate(_URL_SAFE)
    try:
        return b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError) as err:
        raise DecodingError(f"not base64 ({err})") from err


def encode_image(image: Image.Image, media_type: str) -> bytes:
    """image/jpeg (quality 90) or image/png. Raises DecodingError for an image that JPEG cannot hold."""
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
