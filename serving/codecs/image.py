"""Decodes untrusted image files with limits on memory and work. Pillow's exceptions become
DecodingErrors."""

import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, UnidentifiedImageError

from serving.budget import check_time
from serving.codecs.base import FORM, Codec, Limits, decode_base64, describe
from serving.codecs.formats import (
    LONGEST_SIDE,
    PIXEL,
    START_OF_SCAN,
    buffers,
    is_in_one_scan,
    to_rgb,
)
from serving.errors import DecodingError

Pixels = NDArray[np.uint8]
# Pillow's other formats start programs or decode on open. Pillow opens MPO files as JPEG.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
JPEG = ("JPEG", "MPO")
# for two images: the decoded one, and its conversion to RGB or its rotated copy
BYTES_PER_PIXEL = 2 * PIXEL
PAIR = int.from_bytes(START_OF_SCAN, "little")
# Maximum number of reads of a header. A photo's header has tens of parts; Pillow reads each in
# microseconds.
HEADER_PARTS = 800
HEADER_BYTES = 8 * 2**20  # maximum number of bytes read from a header
# Minimum average size of a read after the header: a GIF's blocks have up to 256 bytes, and a PNG's
# chunks have thousands.
BYTES_PER_READ = 32
# A JPEG is reduced while it is decoded only if that reduces it by at least this factor: libjpeg
# takes longer at 7/8 (a factor of 1.14) than at full size.
SMALLER = 1.3

Image.MAX_IMAGE_PIXELS = None  # the limit is checked here instead, by memory
PngImagePlugin.MAX_TEXT_MEMORY = 4 * 2**20  # bytes of decompressed text; Pillow allows 64 MB
# warnings about a caller's file do not help an operator
warnings.filterwarnings("ignore", module=r"PIL\b")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


def most_memory(max_image_pixels: int) -> int:
    """Return the maximum memory in bytes for decoding one image, or all images in a batch, to
    RGB."""
    return max_image_pixels * BYTES_PER_PIXEL


class _File(BytesIO):
    """The bytes of an image file, with a limited number of reads, because each read runs Python
    code and a header can require millions."""

    reads_left = HEADER_PARTS
    bytes_left = HEADER_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self.reads_left -= 1
        if size is not None and size > 0:  # WebP reads everything at once
            self.bytes_left -= len(block)
        if self.reads_left < 0 or self.bytes_left < 0:
            raise DecodingError(
                "the image has too much metadata or too many parts; save it again without metadata"
            )
        return block


class Header:
    """An image of which only the header has been read."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        """Raise DecodingError if the file is not an image, or if decoding it would exceed the
        limits."""
        self.data = data
        self.side = limits.side
        try:
            file = _File(data)
            self.image = Image.open(file, formats=FORMATS)
            # the number of further reads, for the pixels, is limited by the file's length
            file.reads_left = HEADER_PARTS + len(data) // BYTES_PER_READ
            file.bytes_left = 2 * (HEADER_BYTES + len(data))
            self._check(limits.max_image_pixels)
        except DecodingError:
            raise
        except UnidentifiedImageError:
            hint = "send JPEG, PNG, WebP, GIF, BMP or TIFF (curl needs --data-binary @file)"
            raise DecodingError(
                f"not an image in a known format ({len(data)} bytes, {data[:8]!r}…); {hint}"
            ) from None
        except Exception as err:
            raise DecodingError(
                f"the image is truncated or damaged: its header cannot be read ({err})"
            ) from err

    def _check(self, most_pixels: int) -> None:
        image = self.image
        kind = self.image.format
        sides = f"{image.width}×{image.height}"
        if (count := image.width * image.height) > most_pixels:
            raise DecodingError(
                f"the image has {sides} = {count} pixels, the limit is {most_pixels}; send "
                "it smaller"
            )
        if max(image.size) > LONGEST_SIDE:
            raise DecodingError(
                f"the image has {sides} pixels, and a side may have at most {LONGEST_SIDE}, as "
                "in a JPEG; cut it to pieces"
            )
        scans = _count_scans(self.data) if kind in (*JPEG, "TIFF") else 0
        if kind == "PNG":
            is_plain = not getattr(image, "is_animated", True)
        else:
            is_plain = kind in JPEG and scans == 1 and is_in_one_scan(image, self.data)
        self.buffer = 0 if is_plain else buffers(image, self.data, scans, most_pixels)
        if self.memory > (most := most_memory(most_pixels)):
            raise DecodingError(
                f"decoding the {kind} image of {sides} pixels takes {self.memory} bytes, "
                f"more than the limit of {most} ({BYTES_PER_PIXEL} a pixel); send it "
                "smaller, or as a JPEG that is not progressive"
            )
        if "exif" in image.info:  # read here, because it may be rejected
            image.getexif().get(ExifTags.Base.Orientation)
        # a JPEG can be decoded at a half, a quarter or an eighth of its size
        if self.side:
            image.draft(image.mode, (self.side, self.side))

    @property
    def memory(self) -> int:
        """Return the maximum memory in bytes for decoding the image to RGB."""
        size = self.image.width * self.image.height * PIXEL
        return size + max(size, self.buffer)

    def rgb(self) -> Image.Image:
        """Decode the image to RGB, apply its EXIF orientation, and blend transparent pixels with
        white. Raise DecodingError."""
        try:
            image = self._decoded()
            ImageOps.exif_transpose(image, in_place=True)
            return (
                image if image.mode == "RGB" and not image.has_transparency_data else to_rgb(image)
            )
        except DecodingError:
            raise
        except Exception as err:
            reason = str(err) or type(err).__name__
            raise DecodingError(
                f"the {self.image.format} image is truncated or damaged ({reason})"
            ) from err

    def pixels(self) -> Pixels:
        """Return the image that `rgb` returns as an array [height, width, 3]. A JPEG that need not
        be rotated is decoded directly into the array, because copying an image takes longer than
        decoding it. Raise DecodingError."""
        image = self.image
        if image.format in JPEG and image.mode in ("RGB", "L"):
            with suppress(Exception):
                if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
                    decoded: Pixels = simplejpeg.decode_jpeg(self.data)
                    return decoded
        return np.asarray(self.rgb())

    def _decoded(self) -> Image.Image:
        """Decode the image. simplejpeg decodes a JPEG that may be reduced, because it supports the
        factors 3/8, 5/8 and 6/8, while Pillow uses only 1/2, 1/4 and 1/8. Pillow decodes all other
        images: other formats, JPEGs that would not get smaller, and JPEGs with errors, many of
        which Pillow tolerates."""
        image = self.image
        if self.side and image.format in JPEG and image.mode in ("RGB", "L"):
            smaller = {"min_height": self.side, "min_width": self.side, "min_factor": SMALLER}
            with suppress(Exception):
                height, width, *_ = simplejpeg.decode_jpeg_header(self.data, **smaller)
                # `memory` was computed from the size that Pillow would decode
                if width < image.width and height < image.height:
                    pixels = np.empty((height, width, 3), np.uint8)
                    decoded = Image.fromarray(
                        simplejpeg.decode_jpeg(self.data, buffer=pixels, **smaller)
                    )
                    decoded.info = image.info  # it contains the orientation
                    return decoded
        image.load()
        return image


def _count_scans(data: bytes) -> int:
    """Count the scans of JPEG data, including a preview's. bytes.count takes four times as long."""
    scans = 0
    for first in (0, 1):
        count = (len(data) - first) // 2
        pairs = np.frombuffer(data, "<u2", count, first)
        scans += int(np.count_nonzero(pairs == PAIR))
    return scans


class ImageCodec(Codec):
    """Decodes an image file to a PIL.Image in RGB, with its EXIF orientation applied and
    transparent pixels blended with white."""

    name = "image"
    expected = '{"b64": "<base64 of an image file>"}'
    part = "b64"
    keys = ("b64",)
    media_types = ("image/*", "application/x-image", "application/octet-stream", FORM)
    schema: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"b64": {"type": "string", "minLength": 1}},
        "required": ["b64"],
        "additionalProperties": False,
    }

    def open(self, data: bytes, limits: Limits) -> Any:
        return Header(data, limits)

    def load(self, opened: Any) -> Any:
        check_time()
        return opened.rgb()

    def open_json(self, value: Any, limits: Limits) -> Any:
        if not (isinstance(value, dict) and isinstance(value.get(self.part), str)):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        try:
            return self.open(decode_base64(value[self.part]), limits)
        except DecodingError as err:
            raise DecodingError(err.reason, field=self.part) from err

    def memory(self, opened: Any) -> int:
        return int(opened.memory)


class PixelsCodec(ImageCodec):
    """Decodes an image file as ImageCodec does, to an array [height, width, 3] of bytes."""

    def load(self, opened: Any) -> Any:
        check_time()
        return opened.pixels()


class EncodedImageCodec(ImageCodec):
    """Passes on the bytes of an image file for a model that decodes them itself. The header is
    still checked."""

    name = "encoded image"

    def open(self, data: bytes, limits: Limits) -> bytes:
        Header(data, limits)
        return data

    # nothing is decoded
    load = Codec.load
    memory = Codec.memory
