"""Image files of strangers: read within a bound of memory and of work, and turned into RGB.

    bytes -> header (read_header) -> size, format and memory within the limits -> pixels (Header.rgb) -> RGB
             ImageCodec.open                                                      ImageCodec.load

Whatever is wrong on this way is the caller's DecodingError, because Pillow raises whatever its parsers run into.
"""

import logging
import warnings
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, PngImagePlugin, UnidentifiedImageError

from serving.codecs.base import FORM, Codec, Limits, decode_base64, describe
from serving.codecs.formats import PIXEL, buffers, to_rgb
from serving.errors import DecodingError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # others start programs or decode at once; JPEG takes MPO too
JPEG = ("JPEG", "MPO")
BYTES_PER_PIXEL = 2 * PIXEL  # the image and the RGB made of it, or the image and itself while it is turned
START_OF_SCAN = 0xDAFF  # the bytes FF DA
HEADER_PARTS, HEADER_BYTES = 800, 8 * 2**20  # a photo's header has tens of parts; Pillow takes microseconds for each
BYTES_PER_READ = 32  # behind the header; blocks of a GIF have 256, and chunks of a PNG thousands
SMALLER = 1.3  # the least factor by which libjpeg makes an image smaller: at 7/8 it takes longer than at full size

Image.MAX_IMAGE_PIXELS = None  # the limit is checked here, by memory
PngImagePlugin.MAX_TEXT_MEMORY = 4 * 2**20  # of unpacked text; Pillow allows 64 MB
warnings.filterwarnings("ignore", module=r"PIL\b")  # a caller's file says nothing to an operator
logging.getLogger("PIL").setLevel(logging.CRITICAL)


def most_memory(max_image_pixels: int) -> int:
    """Return the bytes that one image, or those of a batch together, take at most until they are RGB."""
    return max_image_pixels * BYTES_PER_PIXEL


class _File(BytesIO):
    """The image's bytes, in a bounded number of reads: each runs in Python, and a header can ask for millions."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._length = len(data)  # getbuffer, which knows it too, would copy the data
        self._reads, self._bytes = HEADER_PARTS, HEADER_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._reads -= 1
        if size is not None and size > 0:  # WebP asks for all at once
            self._bytes -= len(block)
        if self._reads < 0 or self._bytes < 0:
            raise DecodingError("the image has too much metadata or too many parts; save it again without metadata")
        return block

    def header_is_read(self) -> None:
        """Bound the reads of the pixels by the length of the file."""
        self._reads, self._bytes = HEADER_PARTS + self._length // BYTES_PER_READ, 2 * (HEADER_BYTES + self._length)


class Header:
    """An image whose header alone is read.

    Each side keeps at least `side` pixels if the image may be decoded smaller; 0: it may not. `memory` is what it takes
    at most until it is RGB.
    """

    __slots__ = ("data", "image", "memory", "side")

    def __init__(self, image: Image.Image, data: bytes, side: int, buffer: int, max_image_pixels: int) -> None:
        """Raise DecodingError if decoding takes more than the limit. `buffer` is what the decoder takes beside the
        pixels."""
        self.image, self.data, self.side = image, data, side
        self.memory = _memory(image, buffer)
        if self.memory > most_memory(max_image_pixels):
            raise DecodingError(
                f"decoding the {image.format} image of {image.width}×{image.height} pixels takes {self.memory} bytes, "
                f"more than the limit of {most_memory(max_image_pixels)} ({BYTES_PER_PIXEL} for each of "
                f"{max_image_pixels} pixels); send it smaller, or as a JPEG that is not progressive"
            )
        if side:  # a JPEG can be decoded at 1/8 to 6/8 of its size; other formats stay whole
            image.draft(image.mode, (side, side))
            self.memory = _memory(image, buffer)

    def rgb(self) -> Image.Image:
        """Decode the image: EXIF orientation applied, transparency laid on white. Raise DecodingError."""
        try:
            image = self._decoded()
            ImageOps.exif_transpose(image, in_place=True)
            return image if image.mode == "RGB" and not image.has_transparency_data else to_rgb(image)
        except DecodingError:
            raise
        except Exception as err:
            reason = str(err) or type(err).__name__
            raise DecodingError(f"the {self.image.format} image is truncated or damaged ({reason})") from err

    def _decoded(self) -> Image.Image:
        """Decode by libjpeg if the image may be smaller. Otherwise, or if libjpeg finds a mistake, Pillow decodes:
        it reads over many mistakes."""
        if self.side and self.image.format in JPEG and self.image.mode in ("RGB", "L"):
            with suppress(Exception):
                if decoded := self._at_eighths():
                    return decoded
        self.image.load()
        return self.image

    def _at_eighths(self) -> Image.Image | None:
        """Decode a JPEG at 3/8, 5/8 or 6/8, because Pillow asks libjpeg for 1/2, 1/4 and 1/8 alone. Return None if
        that is not smaller than Pillow's size, which `memory` counts."""
        smaller = {"min_height": self.side, "min_width": self.side, "min_factor": SMALLER}
        height, width, *_ = simplejpeg.decode_jpeg_header(self.data, **smaller)
        if width >= self.image.width or height >= self.image.height:
            return None
        pixels = np.empty((height, width, 3), np.uint8)
        decoded = Image.fromarray(simplejpeg.decode_jpeg(self.data, buffer=pixels, **smaller))
        decoded.info = self.image.info  # the orientation is there
        return decoded


def _memory(image: Image.Image, buffer: int) -> int:
    size = image.width * image.height * PIXEL
    return size + max(size, buffer)


def read_header(data: bytes, max_image_pixels: int, side: int = 0) -> Header:
    """Read the header only, and refuse by it. Raise DecodingError."""
    if not data:
        raise DecodingError("the image is empty (0 bytes)")
    try:
        file = _File(data)
        image = Image.open(file, formats=FORMATS)
        file.header_is_read()
        width, height = image.size
        if width * height > max_image_pixels:
            raise DecodingError(
                f"the image has {width}×{height} = {width * height} pixels, more than the limit of "
                f"{max_image_pixels}; send it smaller"
            )
        scans = _scans(data) if image.format in (*JPEG, "TIFF") else 0
        one_scan = image.format in JPEG and scans == 1
        plain = one_scan or (image.format == "PNG" and not getattr(image, "is_animated", True))
        return Header(image, data, side, 0 if plain else buffers(image, scans, max_image_pixels), max_image_pixels)
    except DecodingError:
        raise
    except UnidentifiedImageError:
        raise DecodingError(
            f"not an image in a known format (the first bytes are {data[:8]!r}); send JPEG, PNG, WebP, GIF, BMP or TIFF"
        ) from None
    except Exception as err:
        raise DecodingError(f"the image is truncated or damaged: its header cannot be read ({err})") from err


def _scans(data: bytes) -> int:
    """Count start-of-scan markers; those of a preview inside are counted too. bytes.count takes four times as long."""
    pairs = (np.frombuffer(data, "<u2", (len(data) - at) // 2, at) for at in (0, 1))
    return sum(int(np.count_nonzero(pair == START_OF_SCAN)) for pair in pairs)


class ImageCodec(Codec):
    """Decode an image file to PIL.Image in RGB, EXIF orientation applied, transparency laid on white."""

    name = "image"
    expected = '{"b64": "<base64 of an image file>"}'
    part = "b64"
    keys = ("b64",)
    media_types = ("image/*", "application/x-image", "application/octet-stream", FORM)

    def open(self, data: bytes, limits: Limits) -> Any:
        return read_header(data, limits.max_image_pixels, limits.side)

    def load(self, opened: Any) -> Any:
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


class EncodedImageCodec(ImageCodec):
    """Pass on the bytes of an image file, for a model that decodes by itself; the header is checked."""

    name = "encoded image"

    def open(self, data: bytes, limits: Limits) -> bytes:
        read_header(data, limits.max_image_pixels)
        return data

    def load(self, opened: Any) -> Any:
        return opened

    def memory(self, opened: Any) -> int:
        return 0
