"""Decodes instances: images, texts, table rows, and JSON values.

Each client uses one codec: IMAGE, PIXELS, ENCODED_IMAGE, TEXT, JSON, ROW, or one that it defines.
"""

from serving.codecs.base import (
    FORM,
    Codec,
    JsonCodec,
    Limits,
    RowCodec,
    TextCodec,
    decode_base64,
    describe,
    read_cells,
)
from serving.codecs.formats import encode_image
from serving.codecs.image import EncodedImageCodec, ImageCodec, PixelsCodec, size_as_sent

__all__ = [
    "ENCODED_IMAGE",
    "FORM",
    "IMAGE",
    "JSON",
    "PIXELS",
    "ROW",
    "TEXT",
    "Codec",
    "ImageCodec",
    "Limits",
    "decode_base64",
    "describe",
    "encode_image",
    "read_cells",
    "size_as_sent",
]

IMAGE = ImageCodec()
PIXELS = PixelsCodec()
ENCODED_IMAGE = EncodedImageCodec()
TEXT = TextCodec()
JSON = JsonCodec()
ROW = RowCodec()
