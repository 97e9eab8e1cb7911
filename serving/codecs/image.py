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
    decoder_memory,
    is_in_one_scan,
    to_rgb,
)
from serving.errors import DecodingError

Pixels = NDArray[np.uint8]
# Some of Pillow's other formats start programs or decode on open. Pillow opens MPO files as JPEG.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
JPEG = ("JPEG", "MPO")
CURL = "curl needs --data-binary @file"  # because -d @file removes line ends from the file
# Bytes of memory per pixel, enough for two images: the decoded one, and its conversion to RGB or
# its rotated copy.
BYTES_PER_PIXEL = 2 * PIXEL
# How many times Pillow may read from the file while it opens the header. The header of a photo has
# tens of parts, each of which Pillow reads in microseconds.
HEADER_READS = 800
HEADER_BYTES = 8 * 2**20  # how many bytes Pillow may read while it opens the header
# The smallest allowed average size, in bytes, of the reads after the header. The blocks of a GIF
# have up to 256 bytes, and the chunks of a PNG have thousands.
BYTES_PER_READ = 32
# A JPEG is decoded at a reduced size only if its sides shrink by at least this factor, because
# libjpeg takes longer to decode at 7/8 of the size (a factor of 1.14) than at full size.
MIN_FACTOR = 1.3
# The key in an image's `info` for its size before it was reduced. If the file itself has such an
# entry, `rgb` overwrites it.
SENT = "size as sent"
TRANSPOSED = (5, 6, 7, 8)  # the EXIF orientations that swap width and height

Image.MAX_IMAGE_PIXELS = None  # Header limits pixels and memory instead
PngImagePlugin.MAX_TEXT_MEMORY = 4 * 2**20  # bytes of decompressed text; Pillow allows 64 MB
# do not log warnings about callers' files, because they do not help the operator
warnings.filterwarnings("ignore", module=r"PIL\b")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


def most_memory(max_image_pixels: int) -> int:
    """Return the maximum number of bytes of memory for decoding one image to RGB. The same limit
    applies to all images of a batch together."""
    return max_image_pixels * BYTES_PER_PIXEL


class _File(BytesIO):
    """The bytes of an image file, of which a limited number can be read, in a limited number of
    reads. Without these limits, a malicious header could make Pillow, which is written in Python,
    read millions of times."""

    reads_left = HEADER_READS
    bytes_left = HEADER_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self.reads_left -= 1
        if size is not None and size > 0:  # do not count reads of the whole file, as for WebP
            self.bytes_left -= len(block)
        if self.reads_left < 0 or self.bytes_left < 0:
            raise DecodingError(
                "the image has too much metadata or too many parts; save it again without metadata "
                f"({CURL})"
            )
        return block


class Header:
    """An image file that has been opened but not decoded: only its header has been read."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        """Raise DecodingError if the file is not an image, or if decoding it would exceed the
        limits."""
        self.data = data
        self.side = limits.side
        # simplejpeg's options for a reduced size; it ignores a minimum of 0
        self.scaling = {"min_height": self.side, "min_width": self.side, "min_factor": MIN_FACTOR}
        try:
            file = _File(data)
            self.image = Image.open(file, formats=FORMATS)
            # The header has been read. Pillow may read the rest twice: once to find the frames, and
            # once to decode the pixels.
            file.reads_left = HEADER_READS + len(data) // BYTES_PER_READ
            file.bytes_left = 2 * (HEADER_BYTES + len(data))
            self._check(limits.max_image_pixels)
            self.size_as_sent = self.image.size  # `draft` changes the image's size
            # make Pillow decode a JPEG at 1/2, 1/4 or 1/8 of its size if that is enough
            if self.side:
                self.image.draft(self.image.mode, (self.side, self.side))
        except DecodingError:
            raise
        except UnidentifiedImageError:
            hint = f"send JPEG, PNG, WebP, GIF, BMP or TIFF ({CURL})"
            raise DecodingError(
                f"not an image in a known format ({len(data)} bytes, {data[:8]!r}…); {hint}"
            ) from None
        except Exception as err:
            raise DecodingError(
                f"the image is truncated or damaged: its header cannot be read ({err}); {CURL}"
            ) from err

    def _check(self, most_pixels: int) -> None:
        """Raise DecodingError if decoding would exceed the limits. Set `buffer` to the bytes of
        memory that the decoder takes besides the decoded image."""
        image = self.image
        kind = image.format
        sides = f"{image.width}×{image.height}"
        count = image.width * image.height
        if count > most_pixels:
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
        # decoders need no buffer for a PNG with one frame or a JPEG with all pixels in one scan
        if kind == "PNG":
            is_plain = not getattr(image, "is_animated", True)
        else:
            is_plain = kind in JPEG and scans == 1 and is_in_one_scan(image, self.data)
        self.buffer = 0 if is_plain else decoder_memory(image, self.data, scans, most_pixels)
        most = most_memory(most_pixels)
        if self.memory > most:
            raise DecodingError(
                f"decoding the {kind} image of {sides} pixels takes {self.memory} bytes, "
                f"more than the limit of {most} ({BYTES_PER_PIXEL} a pixel); send it "
                "smaller, or as a JPEG that is not progressive"
            )
        if "exif" in image.info:  # read it now, so that an error is reported before decoding
            image.getexif().get(ExifTags.Base.Orientation)

    @property
    def memory(self) -> int:
        """Return how many bytes of memory decoding the image to RGB takes at most, at the reduced
        size if `draft` has reduced it."""
        size = self.image.width * self.image.height * PIXEL
        second = max(size, self.buffer)  # a second image, or the decoder's buffer
        return size + second

    def rgb(self) -> Image.Image:
        """Decode the image to RGB, apply its EXIF orientation, and blend transparent pixels with
        white. Raise DecodingError."""
        try:
            image = self._decoded()
            is_transposed = image.getexif().get(ExifTags.Base.Orientation) in TRANSPOSED
            ImageOps.exif_transpose(image, in_place=True)
            if image.mode != "RGB" or image.has_transparency_data:
                image = to_rgb(image)
            size = self.size_as_sent
            image.info[SENT] = size[::-1] if is_transposed else size
            return image
        except DecodingError:
            raise
        except Exception as err:
            reason = str(err) or type(err).__name__
            raise DecodingError(
                f"the {self.image.format} image is truncated or damaged ({reason}); {CURL}"
            ) from err

    def pixels(self) -> Pixels:
        """Return the same pixels as `rgb`, as an array [height, width, 3]. If a JPEG need not be
        rotated, decode it directly into the array, which saves copying it out of a Pillow image.
        Raise DecodingError."""
        image = self.image
        if image.format in JPEG and image.mode in ("RGB", "L"):
            with suppress(Exception):  # then Pillow, which tolerates more errors, decodes it
                if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
                    decoded: Pixels = simplejpeg.decode_jpeg(self.data, **self.scaling)
                    return decoded
        return np.asarray(self.rgb())

    def _decoded(self) -> Image.Image:
        """Decode the image. If a JPEG may be decoded at a reduced size, use simplejpeg, which
        supports 3/8, 5/8 and 6/8 of the size besides Pillow's 1/2, 1/4 and 1/8. Otherwise use
        Pillow: for other formats, for JPEGs that would not get smaller, and for JPEGs with errors,
        many of which Pillow tolerates."""
        image = self.image
        if self.side and image.format in JPEG and image.mode in ("RGB", "L"):
            with suppress(Exception):
                height, width, *_ = simplejpeg.decode_jpeg_header(self.data, **self.scaling)
                # do not exceed the size from which `memory` was computed
                if width < image.width and height < image.height:
                    pixels = np.empty((height, width, 3), np.uint8)
                    decoded = Image.fromarray(
                        simplejpeg.decode_jpeg(self.data, buffer=pixels, **self.scaling)
                    )
                    decoded.info = image.info  # it contains the orientation
                    return decoded
        image.load()
        return image


def _count_scans(data: bytes) -> int:
    """Return how often the marker of a scan occurs in JPEG data. The scans of an embedded preview
    count too. (This takes a quarter of the time of bytes.count.)"""
    marker = int.from_bytes(START_OF_SCAN, "little")
    scans = 0
    for first in (0, 1):  # the marker may be at an even or an odd offset
        count = (len(data) - first) // 2
        pairs = np.frombuffer(data, "<u2", count, first)
        scans += int(np.count_nonzero(pairs == marker))
    return scans


def size_as_sent(image: Image.Image) -> tuple[int, int]:
    """Return the width and height that a decoded image had before it was reduced."""
    size: tuple[int, int] = image.info.get(SENT, image.size)
    return size


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
    """Decodes an image file to an array [height, width, 3] of bytes, with the same pixels as
    ImageCodec."""

    def load(self, opened: Any) -> Any:
        check_time()
        return opened.pixels()


class EncodedImageCodec(ImageCodec):
    """Passes on the bytes of an image file, for models that decode images themselves. The header is
    checked first."""

    name = "encoded image"

    def open(self, data: bytes, limits: Limits) -> bytes:
        Header(data, limits)
        return data

    # replace ImageCodec's methods with the defaults, because nothing is decoded
    load = Codec.load
    memory = Codec.memory
