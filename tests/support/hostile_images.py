"""Makes image files that would take much memory or work, and the largest ones that are allowed."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

from PIL import Image

from tests.support.harness import encoded

PIXELS = 9_000_000  # the limit for which the images are made: 72 MB
SIDE = 3000
START_OF_SCAN = b"\xff\xda"  # in a JPEG
END_OF_IMAGE = b"\xff\xd9"
Maker = Callable[[], bytes]
# number, type, number of values, and the value or the position of the values
Tag = tuple[int, int, int, int]


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG."""
    length = struct.pack(">I", len(content))
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return length + kind + content + checksum


def png(
    colour: int, row: int, between: bytes = b"", depth: int = 8, side: int = SIDE, height: int = 0
) -> bytes:
    """Return a PNG of zeros, `side` pixels wide, with the chunks `between` before its pixels.
    `colour` is PNG's colour type, and `row` is the number of bytes in a line. If `height` is 0, the
    image is square."""
    height = height or side
    header = struct.pack(">IIBBBBB", side, height, depth, colour, 0, 0, 0)
    pixels = zlib.compress(bytes((1 + row) * height))  # a line begins with the number of its filter
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + between
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


def jpeg_with(segments: bytes) -> bytes:
    """Return a JPEG with these segments after its first marker."""
    plain = encoded(Image.new("RGB", (8, 8)), "JPEG")
    return plain[:2] + segments + plain[2:]


def jpeg_of_scans(count: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated `count` times."""
    plain = encoded(Image.new("RGB", (SIDE // 2, SIDE // 2)), "JPEG", progressive=True)
    last_scan = plain[plain.rfind(START_OF_SCAN) : -2]
    return plain[:-2] + last_scan * count + END_OF_IMAGE


def run_length_bmp() -> bytes:
    lines = b"\0\2\0\xff" * SIDE  # each moves by 0 columns and 255 lines
    header = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 8, 1, len(lines), 1, 1, 256, 0)
    palette = bytes(1024)
    start = 14 + len(header) + len(palette)  # of the lines
    return b"BM" + struct.pack("<IHHI", start + len(lines), 0, 0, start) + header + palette + lines


def tiff(tags: list[Tag], behind: bytes = b"", directories: int = 1) -> bytes:
    """Return a little-endian TIFF in which each directory leads to the next, and the last one is
    followed by the bytes `behind`."""
    entries = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    size = len(entries) + 4
    next_starts = [8 + size * index for index in range(1, directories)] + [0]
    chain = b"".join(entries + struct.pack("<I", start) for start in next_starts)
    return b"II*\0" + struct.pack("<I", 8) + chain + behind


def after_directory(count: int) -> int:
    """Return the position of the bytes after a TIFF's only directory, which has `count` tags."""
    return 8 + 2 + 12 * count + 4


# Tags: 256 width, 257 height, 258 bits, 259 compression, 262 kind of colours, 273 positions of the
# strips, 274 orientation, 277 values of a pixel, 278 lines of a strip, 279 sizes of the strips, 322
# width of a tile, 323 height of a tile, 324 positions of the tiles, 325 sizes of the tiles
# Types: 1 byte, 3 16 bits, 4 32 bits, 5 fraction, 17 and 18 64 bits
SMALL = [
    (256, 3, 1, 8),
    (257, 3, 1, 8),
    (258, 3, 1, 8),
    (259, 3, 1, 1),
    (262, 3, 1, 1),
    (273, 4, 1, 8),
    (277, 3, 1, 1),
]


def tiff_of_a_huge_tile(kind: int = 4, *more: Tag) -> bytes:
    """Return a TIFF whose tile has sizes of the type `kind`, followed by the tags `more`."""
    tile = zlib.compress(bytes(2**26))
    tags = [
        (256, 4, 1, 16),
        (257, 4, 1, 16),
        (258, 3, 1, 8),
        (259, 3, 1, 8),
        (262, 3, 1, 1),
        (277, 3, 1, 1),
        (322, kind, 1, 2**13),
        (323, kind, 1, 2**13),
        *more,
    ]
    start = after_directory(len(tags) + 2)
    return tiff([*tags, (324, 4, 1, start), (325, 4, 1, len(tile))], tile)


def tiff_of_many_strips() -> bytes:
    count = 3_000_000
    tags = [
        (256, 4, 1, 1),
        (257, 4, 1, count),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, count, after_directory(9)),
        (277, 3, 1, 1),
        (278, 3, 1, 1),
        (279, 4, 1, 1),
    ]
    return tiff(tags, struct.pack("<I", 8) * count)


def gif_of_many_blocks() -> bytes:
    plain = encoded(Image.new("P", (8, 8)), "GIF")
    start = plain.index(b",\0\0\0\0")  # of the image
    comment = b"!\xfe\x01a\0"
    return plain[:start] + comment * 100_000 + plain[start:]


def ico() -> bytes:
    inside = png(6, 4 * SIDE)
    header = b"\0\0\1\0\1\0"
    entry = struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inside), len(header) + 16)
    return header + entry + inside


def exif_of(kind: int, values: bytes) -> bytes:
    """Return EXIF data, which are a TIFF, whose orientation has many values of the type `kind`."""
    count = len(values) // {3: 2, 5: 8}[kind]
    return tiff([(274, kind, count, after_directory(1))], values)


def jpeg_of_one_scan(**options: Any) -> bytes:
    """Return a JPEG that is cut off after its first scan."""
    whole = encoded(Image.new("RGB", (SIDE, SIDE)), "JPEG", subsampling=0, **options)
    before, first_scan, *_ = whole.split(START_OF_SCAN)
    return before + START_OF_SCAN + first_scan + END_OF_IMAGE


def jpeg_of_one_component() -> bytes:
    """Return a JPEG whose only scan contains one of its three components."""
    before, scan = jpeg_of_one_scan().split(START_OF_SCAN)
    component = scan[3:5]  # the first of the three in the scan's header
    header = START_OF_SCAN + b"\0\x08\1" + component + b"\0\x3f\0"
    return before + header + bytes(1000) + END_OF_IMAGE


# images that are refused, with a part of the message
REFUSED: dict[str, tuple[Maker, str]] = {
    "a picture inside an ICO": (ico, "known format"),
    "PostScript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "known format"),
    "a run-length encoded BMP": (run_length_bmp, "run-length"),
    "a WebP of 9 million pixels in 34 bytes": (
        lambda: encoded(
            Image.new("RGBA", (SIDE, SIDE)), "WEBP", lossless=True, method=0, quality=0
        ),
        "180000000",
    ),
    "a progressive JPEG with a thousand scans": (lambda: jpeg_of_scans(1000), "1010"),
    # for these images, libjpeg keeps the coefficients of all pixels
    "a progressive JPEG of one scan": (
        lambda: jpeg_of_one_scan(progressive=True),
        "90000000 bytes",
    ),
    "a JPEG with a scan of one component": (jpeg_of_one_component, "90000000 bytes"),
    "a WebP whose orientation is 100,000 fractions": (
        lambda: encoded(Image.new("RGB", (16, 16)), "WEBP", exif=exif_of(5, bytes(800_000))),
        "metadata",
    ),
    "a PNG whose orientation is 400,000 numbers": (
        lambda: encoded(Image.new("RGB", (16, 16)), exif=exif_of(3, bytes(800_000))),
        "metadata",
    ),
    "a JPEG of comments": (lambda: jpeg_with(b"\xff\xfe\0\2" * 100_000), "metadata"),
    "a JPEG of small EXIF parts": (
        lambda: jpeg_with(b"\xff\xe1\0\x09Exif\0\0X" * 100_000),
        "metadata",
    ),
    "a JPEG of large EXIF parts": (
        lambda: jpeg_with((b"\xff\xe1\xff\xffExif\0\0" + bytes(65527)) * 200),
        "metadata",
    ),
    "a JPEG with a megabyte of junk": (
        lambda: jpeg_with(b"\xff\xfe\0\2" + b"a" * 2**20),
        "metadata",
    ),
    "a PNG of empty chunks": (
        lambda: png(2, 24, chunk(b"abCd", b"") * 100_000, side=8),
        "metadata",
    ),
    "a PNG with 64 MB of text": (
        lambda: png(2, 24, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**20 - 1))) * 64, side=8),
        "text",
    ),
    "a PNG with a profile of 64 MB": (
        lambda: png(2, 24, chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(2**26))), side=8),
        "large",
    ),
    "a GIF of many blocks": (gif_of_many_blocks, "metadata"),
    "a TIFF of 40,000 directories": (lambda: tiff(SMALL, directories=40_000), "frame"),
    "a TIFF of 3,000,000 strips": (tiff_of_many_strips, "metadata"),
    "a TIFF of 65,535 tags at one place": (
        lambda: tiff([(tag, 1, 400_000, 8) for tag in range(65_535)], bytes(2**16)),
        "metadata",
    ),
    "a TIFF of one tile of 64 MB": (tiff_of_a_huge_tile, "268436480"),
    # Pillow reads the second sizes, and libtiff the first ones, which were not counted
    "a TIFF with two sizes of a tile": (
        lambda: tiff_of_a_huge_tile(17, (322, 4, 1, 16), (323, 4, 1, 16)),
        "the tag 322",
    ),
    "a TIFF whose tiles Pillow does not see": (
        lambda: tiff_of_a_huge_tile(18, (273, 4, 1, 8), (278, 4, 1, 16)),
        "the tag 322",
    ),
    # libjpeg's scans are counted only if the file says that it contains a JPEG
    "a TIFF with two compressions": (
        lambda: tiff([*SMALL[:3], (259, 17, 1, 8), *SMALL[3:]]),
        "the tag 259",
    ),
    "a TIFF with two sizes of a strip": (
        lambda: tiff([*SMALL, (278, 3, 1, 8), (278, 3, 1, 16)]),
        "the tag 278",
    ),
}

# images of as many bytes as the limit allows
LARGEST: dict[str, Maker] = {
    "RGB": lambda: png(2, 3 * SIDE),
    "RGB with a transparent colour": lambda: png(2, 3 * SIDE, chunk(b"tRNS", bytes(6))),
    "RGBA": lambda: png(6, 4 * SIDE),
    "grey with alpha": lambda: png(4, 2 * SIDE),
    "16-bit grey": lambda: png(0, 2 * SIDE, depth=16),
    "16-bit RGBA": lambda: png(6, 8 * SIDE, depth=16),
    "a palette with transparency": lambda: png(
        3, SIDE, chunk(b"PLTE", bytes(6)) + chunk(b"tRNS", b"\0\xff")
    ),
    "floats": lambda: encoded(
        Image.new("F", (SIDE, SIDE)), "TIFF", compression="tiff_adobe_deflate"
    ),
    "CMYK": lambda: encoded(
        Image.new("CMYK", (SIDE, SIDE)), "TIFF", compression="tiff_adobe_deflate"
    ),
    "one strip": lambda: encoded(
        Image.new("RGB", (SIDE, SIDE)), "TIFF", compression="tiff_adobe_deflate", strip_size=2**26
    ),
    "a BigTIFF": lambda: encoded(
        Image.new("RGB", (SIDE, SIDE)), "TIFF", compression="tiff_adobe_deflate", big_tiff=True
    ),
    "a turned JPEG": lambda: encoded(Image.new("RGB", (SIDE, SIDE)), "JPEG", exif=turned()),
    "a progressive JPEG": lambda: encoded(
        Image.new("RGB", (2600, 2600)), "JPEG", progressive=True, subsampling=0
    ),
    "a WebP": lambda: encoded(Image.new("RGBA", (1890, 1890), (1, 2, 3, 4)), "WEBP", method=0),
    "a GIF": lambda: encoded(Image.new("P", (SIDE, SIDE)), "GIF"),
}


def turned(orientation: int = 6) -> Image.Exif:
    """Return EXIF data with this orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
