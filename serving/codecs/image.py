"""Image files of strangers: read within a bound of memory and of work, and turned into RGB.

    bytes -> header (read_header) -> size, format and memory within the limits -> pixels (Header.rgb) -> RGB
             ImageCodec.open                                                      ImageCodec.load

Whatever is wrong on this way is the caller's DecodingError, for Pillow raises whatever its parsers run into.
"""

import binascii
import logging
import warnings
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from serving.codecs.base import FORM, Codec, Limits, describe
from serving.errors import DecodingError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # others start programs or decode at once; JPEG takes MPO too
ANIMATED_FORMATS = {"GIF", "PNG", "WEBP", "TIFF"}  # not MPO: phones add a preview as a second frame
PIXEL = 4  # bytes of one in Pillow's largest modes, RGB among them
BYTES_PER_PIXEL = 2 * PIXEL  # the image and the RGB made of it, or the image and itself while it is turned
WEBP_BUFFERS = 16  # bytes of a pixel: two canvases of libwebp, Pillow's copy of one, and the RGB
SCANS = 16  # of a JPEG with all the pixels allowed; libjpeg's progressive files have 10, and each is a walk over all
START_OF_SCAN = 0xDAFF  # the bytes FF DA
HEADER_PARTS, HEADER_BYTES = 800, 8 * 2**20  # a photo's header has tens of parts; Pillow takes microseconds for each
BYTES_PER_READ = 32  # behind the header; blocks of a GIF have 256, and chunks of a PNG thousands
SMALLER = 1.3  # times, by which libjpeg makes an image smaller at least: at 7/8 it takes longer than at full size

Image.MAX_IMAGE_PIXELS = None  # the limit is checked here, by memory
PngImagePlugin.MAX_TEXT_MEMORY = 4 * 2**20  # of unpacked text; Pillow allows 64 MB
TiffImagePlugin.READ_LIBTIFF = True  # strips are read in C: Pillow's own way takes minutes for a million of them
warnings.filterwarnings("ignore", module=r"PIL\b")  # a caller's file says nothing to an operator
logging.getLogger("PIL").setLevel(logging.CRITICAL)


def most_memory(max_image_pixels: int) -> int:
    """The bytes that one image, or those of a batch together, take at most while they are decoded and converted."""
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
            raise DecodingError("the image has too much metadata or is cut into too many parts; save it anew without")
        return block

    def header_is_read(self) -> None:
        self._reads, self._bytes = HEADER_PARTS + self._length // BYTES_PER_READ, 2 * (HEADER_BYTES + self._length)


@dataclass(frozen=True)
class Header:
    """An image whose header alone is read, of this data; `buffers` are the bytes that its decoder takes beside the
    pixels, `scans` those of a JPEG, 0 of other formats; `side` is what each side must keep where it may be decoded
    smaller, 0 where it may not."""

    image: Image.Image
    data: bytes
    buffers: int
    scans: int
    side: int = 0

    @property
    def memory(self) -> int:
        pixels = self.image.width * self.image.height
        return pixels * PIXEL + max(pixels * PIXEL, self.buffers)

    def reduced(self, side: int) -> "Header":
        """A JPEG can be decoded at 1/8 to 6/8 of its size, with no side below that; other formats stay whole."""
        self.image.draft(self.image.mode, (side, side))
        return replace(self, side=side)

    def rgb(self) -> Image.Image:
        """The image, EXIF orientation applied, transparency laid on white; raises DecodingError."""
        try:
            image = self._decoded()
            ImageOps.exif_transpose(image, in_place=True)
            return image if image.mode == "RGB" and not image.has_transparency_data else to_rgb(image)
        except DecodingError:
            raise
        except Exception as err:
            raise _damaged(self.image.format, err) from err

    def _decoded(self) -> Image.Image:
        """Pillow has the last word where libjpeg finds something wrong: it decodes many a damaged file."""
        if self.side and self.image.format in ("JPEG", "MPO") and self.image.mode in ("RGB", "L"):
            with suppress(Exception):
                if decoded := self._at_eighths():
                    return decoded
        self.image.load()
        return self.image

    def _at_eighths(self) -> Image.Image | None:
        """Pillow asks libjpeg for 1/2, 1/4 and 1/8 alone. None where nothing between them is small enough to pay; never
        larger than Pillow's, which `memory` counts."""
        smaller = {"min_height": self.side, "min_width": self.side, "min_factor": SMALLER}
        height, width, *_ = simplejpeg.decode_jpeg_header(self.data, **smaller)
        if width >= self.image.width or height >= self.image.height:
            return None
        pixels = np.empty((height, width, 3), np.uint8)
        decoded = Image.fromarray(simplejpeg.decode_jpeg(self.data, buffer=pixels, **smaller))
        decoded.info = self.image.info  # the orientation is there
        return decoded


class ImageCodec(Codec):
    """An image file -> PIL.Image in RGB, EXIF orientation applied, transparency laid on white."""

    name = "image"
    expected = '{"b64": "<base64 of an image file>"}'
    part = "b64"
    keys = ("b64",)
    media_types = ("image/*", "application/x-image", "application/octet-stream", FORM)

    def open(self, data: bytes, limits: Limits) -> Any:
        image = read_header(data, limits.max_image_pixels)
        return image.reduced(limits.side) if limits.side else image

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
    """An image file -> its bytes as they are, for a model that decodes by itself; the header is checked."""

    name = "encoded image"

    def open(self, data: bytes, limits: Limits) -> bytes:
        read_header(data, limits.max_image_pixels)
        return data

    def load(self, opened: Any) -> Any:
        return opened

    def memory(self, opened: Any) -> int:
        return 0


def read_header(data: bytes, max_image_pixels: int) -> Header:
    """Reads the header only, and refuses by it: DecodingError."""
    if not data:
        raise DecodingError("the image is empty (0 bytes)")
    try:
        file = _File(data)
        image = Image.open(file, formats=FORMATS)
        file.header_is_read()
        scans = _scans(data) if _is_jpeg(image) else 0
        header = Header(image, data, _buffers(image, scans), scans)
        _check(header, max_image_pixels)
        return header
    except DecodingError:
        raise
    except UnidentifiedImageError:
        raise DecodingError(
            f"not an image in a known format (the first bytes are {data[:8]!r}); send JPEG, PNG, WebP, GIF, BMP or TIFF"
        ) from None
    except Exception as err:
        raise DecodingError(f"the image is truncated or damaged: its header cannot be read ({err})") from err


def _damaged(format: str | None, err: Exception) -> DecodingError:
    return DecodingError(f"the {format} image is truncated or damaged ({str(err) or type(err).__name__})")


def _buffers(image: Image.Image, scans: int) -> int:
    """The bytes that a decoder holds beside the image it fills."""
    pixels = _pixels_at_a_time(image)
    coefficients = 2 * len(image.getbands()) * pixels  # libjpeg's, where more than one scan adds to them
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits: int = max(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
        samples = int(image.tag_v2.get(TiffImagePlugin.SAMPLESPERPIXEL, 1))
        return pixels * max(bits * samples // 8, PIXEL) + (coefficients if _is_jpeg(image) else 0)
    if image.format == "WEBP":
        return pixels * WEBP_BUFFERS
    return coefficients if scans > 1 else 0


def _pixels_at_a_time(image: Image.Image) -> int:
    """Of the strip or tile that libtiff unpacks, which may be larger than its image; of other formats all."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return image.width * image.height
    tags, side = image.tag_v2, max(image.size)  # a turned image has its sides exchanged
    rows = min(int(tags.get(TiffImagePlugin.ROWSPERSTRIP, side)), side)
    width, length = tags.get(TiffImagePlugin.TILEWIDTH), tags.get(TiffImagePlugin.TILELENGTH)
    return int(width) * int(length) if width and length else min(rows * side, image.width * image.height)


def _is_jpeg(image: Image.Image) -> bool:
    return image.format in ("JPEG", "MPO") or "jpeg" in str(image.info.get("compression", ""))


def _scans(data: bytes) -> int:
    """Start-of-scan markers; those of a preview inside are counted too. bytes.count takes four times as long."""
    pairs = (np.frombuffer(data, "<u2", (len(data) - at) // 2, at) for at in (0, 1))
    return sum(int(np.count_nonzero(pair == START_OF_SCAN)) for pair in pairs)


def _check(header: Header, max_image_pixels: int) -> None:
    image = header.image
    pixels = image.width * image.height
    if pixels > max_image_pixels:
        raise DecodingError(
            f"the image has {image.width}×{image.height} = {pixels} pixels, more than the limit of "
            f"{max_image_pixels}; send it smaller"
        )
    if header.memory > most_memory(max_image_pixels):
        raise DecodingError(
            f"decoding the {image.format} image of {image.width}×{image.height} pixels takes {header.memory} bytes, "
            f"more than the limit of {most_memory(max_image_pixels)} ({BYTES_PER_PIXEL} for each of "
            f"{max_image_pixels} pixels); send it smaller, or as a JPEG that is not progressive"
        )
    if header.scans * _pixels_at_a_time(image) > SCANS * max_image_pixels:
        raise DecodingError(f"the JPEG image has {header.scans} scans; send it as one that is not progressive")
    if image.format == "BMP" and image.info.get("compression") in (1, 2):  # Pillow unpacks it in Python
        raise DecodingError("the BMP image is run-length encoded; send it uncompressed, or as PNG")
    if image.format in ANIMATED_FORMATS and getattr(image, "is_animated", False):
        raise DecodingError(f"the {image.format} image has more than one frame; send one frame")


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
