"""How one instance of a request is read: an image, a text, or any JSON value.

A codec reads an instance either from raw bytes (a body, a part of a form) or from its place in a JSON body,
and raises DecodingError that says what was expected. Only this module decodes images.
"""

import binascii
import io
from abc import ABC, abstractmethod
from base64 import b64decode
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import orjson
from PIL import Image, ImageOps, UnidentifiedImageError

from serving.budget import read_json
from serving.errors import DecodingError

ANIMATED_FORMATS = {"GIF", "PNG", "WEBP", "TIFF", "AVIF"}  # not MPO: phones add a preview as a second frame
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError)
Image.MAX_IMAGE_PIXELS = None  # Limits has the bound, checked before anything is decoded


@dataclass(frozen=True)
class Limits:
    """What is refused before it is decoded; and how many pixels each side of an image must keep where it may be
    decoded smaller than it is, 0 where it may not."""

    max_image_pixels: int = 89_000_000
    side: int = 0


class Codec(ABC):
    """One kind of instance. `expected` is what an error tells the caller to send in JSON, `part` the field of such a
    value that holds the instance.

    An instance is opened, which is quick and says how large it is, and then loaded, which takes time and memory and
    lets the interpreter go on.
    """

    name: str
    expected: str
    part: str = ""
    media_types: tuple[str, ...] = ()

    def from_bytes(self, data: bytes, limits: Limits) -> Any:
        """The instance that these raw bytes hold."""
        return self.load(self.open(data, limits))

    def from_json(self, value: Any, limits: Limits) -> Any:
        """The instance that this value of a JSON body holds."""
        opened = self.open_json(value, limits)
        try:
            return self.load(opened)
        except DecodingError as err:
            raise DecodingError(err.reason, field=self.part) from err

    @abstractmethod
    def open(self, data: bytes, limits: Limits) -> Any:
        """What `load` makes the instance of."""

    @abstractmethod
    def open_json(self, value: Any, limits: Limits) -> Any:
        """The same of a value of a JSON body."""

    def load(self, opened: Any) -> Any:
        """The instance."""
        return opened

    def pixels(self, opened: Any) -> int:
        """How many the instance has, each of three bytes; what is no image has none."""
        return 0


class ImageCodec(Codec):
    """An image file -> PIL.Image in RGB, EXIF orientation applied, transparency laid on white."""

    name = "image"
    expected = '{"b64": "<base64 of an image file>"}'
    part = "b64"
    media_types = ("image/*", "application/x-image", "application/octet-stream", "multipart/form-data")

    def open(self, data: bytes, limits: Limits) -> Any:
        image = self._open(data, limits)
        if limits.side:  # a JPEG's blocks can be decoded at 1/2, 1/4 or 1/8 of their size; other formats stay whole
            image.draft(image.mode, (limits.side, limits.side))
        return image

    def load(self, opened: Any) -> Any:
        try:
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)
            return to_rgb(opened)
        except PILLOW_ERRORS as err:
            raise DecodingError(f"the {opened.format} image is truncated or damaged ({err})") from err

    def open_json(self, value: Any, limits: Limits) -> Any:
        if not (isinstance(value, dict) and isinstance(value.get(self.part), str)):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        try:
            return self.open(decode_base64(value[self.part]), limits)
        except DecodingError as err:
            raise DecodingError(err.reason, field=self.part) from err

    def pixels(self, opened: Any) -> int:
        return int(opened.width * opened.height)

    def _open(self, data: bytes, limits: Limits) -> Image.Image:
        """Reads the header only, and refuses by it."""
        if not data:
            raise DecodingError("the image is empty (0 bytes)")
        try:
            image = Image.open(io.BytesIO(data))
        except UnidentifiedImageError:
            raise DecodingError(
                f"not an image in a known format (the first bytes are {data[:8]!r}); "
                "send JPEG, PNG, WebP, GIF, BMP or TIFF"
            ) from None
        except PILLOW_ERRORS as err:
            raise DecodingError(f"the image is truncated or damaged: its header cannot be read ({err})") from err
        width, height = image.size
        if width * height > limits.max_image_pixels:
            raise DecodingError(
                f"the image has {width}×{height} = {width * height} pixels, more than the limit of "
                f"{limits.max_image_pixels}; send it smaller"
            )
        if image.format in ANIMATED_FORMATS and getattr(image, "n_frames", 1) > 1:
            raise DecodingError(f"the {image.format} image has more than one frame; send one frame")
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode -> RGB: 16-bit scaled to 8, transparency laid on white, CMYK and palettes converted."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    elif image.mode == "F":
        image = Image.fromarray(np.asarray(image).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        image = Image.alpha_composite(white, rgba)
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy


class EncodedImageCodec(ImageCodec):
    """An image file -> its bytes as they are, for a model that decodes by itself; the header is checked."""

    name = "encoded image"

    def open(self, data: bytes, limits: Limits) -> bytes:
        self._open(data, limits)
        return data

    def load(self, opened: Any) -> Any:
        return opened

    def pixels(self, opened: Any) -> int:
        return 0


class TextCodec(Codec):
    """UTF-8 text -> str."""

    name = "text"
    expected = 'a string, or {"text": "…"}'
    media_types = ("text/plain",)

    def open(self, data: bytes, limits: Limits) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise DecodingError(f"the text is not UTF-8 (byte {err.start})") from err

    def open_json(self, value: Any, limits: Limits) -> str:
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        return text


class JsonCodec(Codec):
    """Any JSON value, as it is."""

    name = "json"
    expected = "any JSON value"
    media_types = ("application/json",)

    def open(self, data: bytes, limits: Limits) -> Any:
        try:
            return read_json(data)
        except orjson.JSONDecodeError as err:
            raise DecodingError(f"not JSON: {err}") from err

    def open_json(self, value: Any, limits: Limits) -> Any:
        return value


IMAGE, ENCODED_IMAGE, TEXT, JSON = ImageCodec(), EncodedImageCodec(), TextCodec(), JsonCodec()


def decode_base64(text: str) -> bytes:
    """Standard or URL-safe base64, padded or not, with or without a `data:…;base64,` prefix and line ends."""
    if text.startswith("data:") and "," in text[:256]:
        text = text.split(",", 1)[1]
    compact = "".join(text.split()).rstrip("=").translate(_URL_SAFE)
    try:
        return b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError) as err:
        raise DecodingError(f"not base64 ({err})") from err


_URL_SAFE = str.maketrans("-_", "+/")


def encode_image(image: Image.Image, media_type: str) -> bytes:
    """image/jpeg (quality 90) or image/png."""
    buffer = io.BytesIO()
    if media_type == "image/png":
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def describe(value: Any) -> str:
    """A value in an error message: its JSON type, its keys or its start, never all of it."""
    if isinstance(value, dict):
        return f"an object with the keys {sorted(map(str, islice(value, 8)))}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the string {value[:40]!r}{'…' if len(value) > 40 else ''}"
    return "null" if value is None else f"{type(value).__name__} {value!r}"
