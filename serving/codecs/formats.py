"""Handles the differences between image formats: how much memory their decoders need, how their
pixels are converted to RGB, and how images are encoded."""

import struct
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin, TiffTags

from serving.errors import DecodingError

PIXEL = 4  # bytes per pixel in Pillow's largest modes, which include RGB
# bytes per pixel of a WebP: two canvases of libwebp, Pillow's copy of one, and the RGB image
WEBP_PIXEL = 16
# The maximum number of scans in a JPEG of the maximum size. Each scan is a pass over all pixels.
# The progressive JPEGs that libjpeg writes have 10.
SCANS = 16
START_OF_SCAN = b"\xff\xda"
SCAN_COMPONENTS = 4  # the offset of a scan's number of components, in bytes from START_OF_SCAN
# Formats that may have several frames. MPO is missing, because its second frame is only a preview.
ANIMATED = {"GIF", "PNG", "WEBP", "TIFF"}
# pixels to convert at a time; each takes up to 16 bytes during the conversion
STRIP_PIXELS = 2**20
WHITE_IS_ZERO = 0  # a value of the TIFF tag PhotometricInterpretation
# The maximum number of pixels on a side, as in libjpeg (JPEG_MAX_DIMENSION). To resize an image
# that is a single line of 89 million pixels, Pillow would take gigabytes.
LONGEST_SIDE = 65_500

PLANES = 284  # the TIFF tag PlanarConfiguration
# the TIFF tags that determine how much libtiff decodes at a time, and with which decoder
SIZE_TAGS = {
    TiffImagePlugin.COMPRESSION,
    TiffImagePlugin.BITSPERSAMPLE,
    TiffImagePlugin.SAMPLESPERPIXEL,
    TiffImagePlugin.ROWSPERSTRIP,
    PLANES,
    TiffImagePlugin.TILEWIDTH,
    TiffImagePlugin.TILELENGTH,
}
WHOLE_NUMBERS = {TiffTags.SHORT, TiffTags.LONG}
BIG_TIFF = 43  # the version number of BigTIFF, which has 64-bit offsets

MOST_VALUES = 2**17  # maximum number of values in a tag; Pillow turns each into a Python object
MOST_FRACTIONS = 2**12  # maximum number of fractions in a tag; Pillow takes 2.4 µs for each
FRACTIONS = {TiffTags.RATIONAL, TiffTags.SIGNED_RATIONAL}
# the types whose data Pillow turns into a single Python object
ONE_OBJECT = {TiffTags.BYTE, TiffTags.ASCII, TiffTags.UNDEFINED}

# let libtiff read strips, because Pillow's Python code takes minutes for a million of them
TiffImagePlugin.READ_LIBTIFF = True


def _load_bounded(
    load: Callable[..., Any], most: int, tags: Any, data: bytes, *options: Any
) -> Any:
    """Load the values of a tag with Pillow's function `load`, which gets `tags`, `data` and
    `options`. Raise DecodingError if `data` is longer than `most` bytes."""
    if len(data) > most:
        raise DecodingError(
            f"the image has too much metadata (a tag of {len(data)} bytes); save it again without "
            "metadata"
        )
    return load(tags, data, *options)


def _bound_tags() -> None:
    """Change Pillow so that it refuses a TIFF tag with too many values, because each becomes a
    Python object."""
    loaders = TiffImagePlugin.ImageFileDirectory_v2._load_dispatch
    for kind in loaders.keys() - ONE_OBJECT:
        size, load = loaders[kind]
        count = MOST_FRACTIONS if kind in FRACTIONS else MOST_VALUES
        loaders[kind] = (size, partial(_load_bounded, load, count * size))


_bound_tags()


def decoder_memory(image: Image.Image, data: bytes, scans: int, max_image_pixels: int) -> int:
    """Return how many bytes of memory the format's decoder needs besides the decoded image. `data`
    is the file; `scans` is the number of scans in its JPEG data. Raise DecodingError if decoding
    would take too much work, if the sizes in a TIFF are ambiguous, or if the file has several
    frames."""
    pixels = image.width * image.height  # how many are decoded at a time
    tags = None
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        _check_tags(data, tags)
        pixels = _pixels_at_once(image, tags)
        if "jpeg" not in str(image.info.get("compression", "")):
            scans = 0  # other data happened to look like the marker of a scan
    if scans * pixels > SCANS * max_image_pixels:
        raise DecodingError(
            f"the JPEG image has {scans} scans; send it as one that is not progressive"
        )
    # Pillow decodes run-length encoding (1 and 2) in Python, which is slow
    if image.format == "BMP" and image.info.get("compression") in (1, 2):
        raise DecodingError("the BMP image is run-length encoded; send it uncompressed, or as PNG")
    if image.format in ANIMATED and getattr(image, "is_animated", False):
        raise DecodingError(f"the {image.format} image has more than one frame; send one frame")
    # Unless a single scan contains all pixels, libjpeg keeps all coefficients of the image, which
    # take two bytes each. (For a JPEG with such a scan, Header does not call this function.)
    coefficients = 2 * len(image.getbands()) * pixels if scans else 0
    if tags is not None:
        bits: int = max(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
        samples = int(tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1))
        return pixels * max(bits * samples // 8, PIXEL) + coefficients
    if image.format == "WEBP":
        return pixels * WEBP_PIXEL
    return coefficients


def _pixels_at_once(image: Image.Image, tags: TiffImagePlugin.ImageFileDirectory_v2) -> int:
    """Return how many pixels of a TIFF are decoded at a time: those of one strip, or those of one
    tile, which may be larger than the image."""
    width = tags.get(TiffImagePlugin.TILEWIDTH)
    length = tags.get(TiffImagePlugin.TILELENGTH)
    if width and length:
        return int(width) * int(length)
    # Pillow swaps the sides of a rotated image, so its width in the file may be either side
    side = max(image.size)
    rows = min(int(tags.get(TiffImagePlugin.ROWSPERSTRIP, side)), side)
    return min(rows * side, image.width * image.height)


def is_in_one_scan(image: Image.Image, data: bytes) -> bool:
    """Return whether the only scan of a JPEG contains all components of its pixels, and the JPEG is
    not progressive. Decoding such a JPEG takes much less memory. `data` is the file, which must
    have exactly one scan."""
    at = data.find(START_OF_SCAN) + SCAN_COMPONENTS
    components_of_scan = data[at : at + 1]
    components_of_image = bytes([getattr(image, "layers", 0)])
    return "progressive" not in image.info and components_of_scan == components_of_image


def _check_tags(data: bytes, tags: TiffImagePlugin.ImageFileDirectory_v2) -> None:
    """Raise DecodingError if libtiff could read other sizes than Pillow, whose sizes are the ones
    that we check. The two can differ because Pillow ignores tags of unknown types, and all tags
    after an invalid one. Only the first directory of the TIFF `data` is read, because a TIFF with
    several is refused."""
    order = "<" if data.startswith(b"II") else ">"
    offset_format = "4xL"  # skips the file's signature, and reads the directory's offset
    count_format = "H"  # reads the number of entries in the directory
    entry_format = "HHL4x"  # reads a tag, the type of its values and their number; skips the values
    if BIG_TIFF in data[2:4]:
        offset_format = "8xQ"
        count_format = "Q"
        entry_format = "HHQ8x"
    (start,) = struct.unpack_from(order + offset_format, data)
    (count,) = struct.unpack_from(order + count_format, data, start)
    start += struct.calcsize(order + count_format)
    end = start + count * struct.calcsize(order + entry_format)
    entries = data[start:end]
    seen = set()
    for tag, kind, value_count in struct.iter_unpack(order + entry_format, entries):
        if tag not in SIZE_TAGS:
            continue
        # BITSPERSAMPLE has one value for each sample
        is_one = value_count == 1 or tag == TiffImagePlugin.BITSPERSAMPLE
        is_number = kind in WHOLE_NUMBERS and is_one
        if tag in seen or tag not in tags or not is_number:
            raise DecodingError(
                f"the TIFF image has the tag {tag} twice, or not as one whole number of 16 or 32 "
                "bits; save it again, or as PNG"
            )
        seen.add(tag)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB. Blend transparent pixels with white, and reduce 16-bit gray to 8
    bits. Raise DecodingError for the modes of floats and of signed or 32-bit integers, because
    these do not define which value is white."""
    if image.mode in ("I", "F"):
        raise DecodingError(
            f"the {image.format} image has pixels of 32 bits, signed ones or floats (Pillow's mode "
            f"{image.mode}); send 8 or 16 unsigned bits"
        )
    result = Image.new("RGB", image.size)
    rows = max(1, STRIP_PIXELS // image.width)
    tags = getattr(image, "tag_v2", {})  # only a TIFF has tags
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        strip = image.crop((0, top, image.width, bottom))
        if strip.mode.startswith("I;16"):
            strip = _high_bytes(strip, tags)
        result.paste(_strip_to_rgb(strip), (0, top))
    return result


def _high_bytes(image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
    """Convert a 16-bit gray image to 8 bits. The transparent level becomes white."""
    levels = np.asarray(image)
    bits: int = max(tags.get(TiffImagePlugin.BITSPERSAMPLE, (16,)))  # a TIFF may have 12
    gray = (levels >> (bits - 8)).astype(np.uint8)
    # Pillow inverts images whose white is 0 only if they have 8 bits
    if tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == WHITE_IS_ZERO:
        gray = ~gray
    transparent = image.info.get("transparency")
    if transparent is not None:
        gray[levels == transparent] = 255
    return Image.fromarray(gray)


def _strip_to_rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        image = Image.alpha_composite(white, rgba)
    return image.convert("RGB")


def encode_image(image: Image.Image, media_type: str) -> bytes:
    """Encode an image as image/jpeg (quality 90) or image/png."""
    format = "PNG" if media_type == "image/png" else "JPEG"
    buffer = BytesIO()
    image.save(buffer, format, quality=90)  # PNG ignores the quality
    return buffer.getvalue()
