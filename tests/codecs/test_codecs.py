"""Tests that images of every mode are converted to the right RGB values, and that what cannot be
decoded is refused with a reason."""

import base64
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from clients._text.task import Fields
from serving.codecs import (
    ENCODED_IMAGE,
    IMAGE,
    JSON,
    PIXELS,
    TEXT,
    Limits,
    decode_base64,
    size_as_sent,
)
from serving.codecs.image import SENT
from serving.errors import DecodingError
from tests.support.harness import encoded, png_that_claims
from tests.support.hostile_images import turned

pytestmark = pytest.mark.unit

LIMITS = Limits()
RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def corner(image: Image.Image) -> tuple[int, ...]:
    pixel = image.getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return pixel


def paletted() -> Image.Image:
    image = Image.new("P", (2, 2), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    return image


@pytest.mark.parametrize(
    ("mode", "value", "format", "colour"),
    [
        ("L", 77, "PNG", (77, 77, 77)),
        ("I;16", 257 * 100, "PNG", (100, 100, 100)),
        ("1", 1, "PNG", WHITE),
        # transparent parts become white
        ("RGBA", (255, 0, 0, 0), "PNG", WHITE),
        ("RGBA", (255, 0, 0, 128), "PNG", (255, 127, 127)),
        ("LA", (0, 0), "PNG", WHITE),
        ("CMYK", (255, 0, 0, 0), "JPEG", (0, 255, 255)),
        *(("RGB", GREEN, each, GREEN) for each in FORMATS),
    ],
)
def test_convert_an_image_of_any_mode_and_format_to_rgb(
    mode: str, value: Any, format: str, colour: tuple[int, ...]
) -> None:
    image = Image.new(mode, (16, 12), value)
    decoded = IMAGE.from_bytes(encoded(image, format, quality=95), LIMITS)
    assert (decoded.mode, decoded.size, size_as_sent(decoded)) == ("RGB", image.size, image.size)
    assert corner(decoded) == pytest.approx(colour, abs=6 if format == "JPEG" else 1)


def test_lay_a_palette_s_transparent_colour_on_white() -> None:
    for transparent, colour in ((0, WHITE), (1, RED)):
        assert (
            corner(IMAGE.from_bytes(encoded(paletted(), transparency=transparent), LIMITS))
            == colour
        )


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_apply_the_exif_orientation(orientation: int, format: str) -> None:
    """Displayed correctly, the picture has a red top left corner and is 3 pixels wide and 2
    high."""
    seen = Image.new("RGB", (30, 20), WHITE)
    seen.paste(RED, (0, 0, 10, 10))
    # the value of Pillow's Transpose that reverses each orientation
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = seen if orientation == 1 else seen.transpose(Image.Transpose(inverse[orientation]))
    image = IMAGE.from_bytes(encoded(stored, format, exif=turned(orientation)), LIMITS)
    assert image.size == size_as_sent(image) == (30, 20)
    assert corner(image) == RED


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_refuse_more_than_one_frame(format: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, GREEN)]
    with pytest.raises(DecodingError, match="frame"):
        IMAGE.from_bytes(
            encoded(frames[0], format, save_all=True, append_images=frames[1:]), LIMITS
        )


def test_read_a_phone_s_jpeg_with_a_preview() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN)]
    image = IMAGE.from_bytes(
        encoded(frames[0], "MPO", save_all=True, append_images=frames[1:]), LIMITS
    )
    assert corner(image) == pytest.approx(RED, abs=3)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_refuse_a_truncated_image(format: str, kept: float) -> None:
    data = encoded(Image.effect_noise((64, 64), 90).convert("RGB"), format)
    with pytest.raises(DecodingError):
        IMAGE.from_bytes(data[: int(len(data) * kept)], LIMITS)
    with pytest.raises(DecodingError, match="truncated"):
        PIXELS.from_bytes(data[: int(len(data) * kept)], LIMITS)


def test_refuse_too_many_pixels_by_the_header_alone() -> None:
    with pytest.raises(DecodingError, match="900000000"):
        IMAGE.from_bytes(png_that_claims(30_000, 30_000), LIMITS)
    with pytest.raises(DecodingError, match="15"):
        IMAGE.from_bytes(encoded(Image.new("L", (4, 4))), Limits(max_image_pixels=15))


@pytest.mark.parametrize("length", range(7))
def test_read_base64_in_every_usual_form(length: int) -> None:
    data = bytes(range(250, 250 - length, -1))
    plain, url = base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()
    for text in (plain, url, plain.rstrip("="), f"data:image/png;base64,{plain}", "\n".join(plain)):
        assert decode_base64(text) == data


@pytest.mark.parametrize("text", ["!", "a", "ab=c", "äö", "data:image/png,xyz!"])
def test_refuse_invalid_base64(text: str) -> None:
    with pytest.raises(DecodingError, match="base64"):
        decode_base64(text)


def test_read_texts_and_json_values() -> None:
    assert (
        TEXT.from_bytes("ü".encode(), LIMITS)
        == TEXT.open_json("ü", LIMITS)
        == TEXT.open_json({"text": "ü"}, LIMITS)
    )
    assert JSON.from_bytes(b'{"a": 1}', LIMITS) == JSON.open_json({"a": 1}, LIMITS)
    with pytest.raises(DecodingError, match="string"):
        TEXT.open_json(5, LIMITS)
    with pytest.raises(DecodingError, match="JSON"):
        JSON.from_bytes(b"{", LIMITS)


def test_keep_an_encoded_image_but_check_its_header() -> None:
    data = png_that_claims(8, 6)
    assert ENCODED_IMAGE.from_bytes(data, Limits()) == data
    assert ENCODED_IMAGE.open_json({"b64": base64.b64encode(data).decode()}, Limits()) == data
    assert ENCODED_IMAGE.memory(data) == 0
    for wrong in (b"", b"no image", png_that_claims(10**5, 10**5)):
        with pytest.raises(DecodingError):
            ENCODED_IMAGE.from_bytes(wrong, Limits())


@pytest.mark.parametrize(
    ("size", "side", "decoded"),
    [
        ((4000, 3000), 300, (500, 375)),
        ((4000, 3000), 1501, (2500, 1875)),
        ((768, 576), 430, (576, 432)),
        ((999, 501), 301, (625, 314)),
        ((4000, 310), 300, (4000, 310)),
        ((4000, 3000), 0, (4000, 3000)),
    ],
)
def test_decode_a_large_jpeg_at_a_reduced_size(
    size: tuple[int, int], side: int, decoded: tuple[int, int]
) -> None:
    data = encoded(Image.new("RGB", size, RED), "JPEG")
    limits = Limits(side=side)
    assert IMAGE.from_bytes(data, limits).size == decoded
    assert PIXELS.from_bytes(data, limits).shape == (*decoded[::-1], 3)
    assert IMAGE.from_bytes(encoded(Image.new("RGB", size), "PNG"), limits).size == size


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"progressive": True},
        {"quality": 30},
        {"format": "PNG"},
        *({"exif": turned(orientation)} for orientation in (3, 6)),
    ],
)
def test_decode_the_same_pixels_into_an_array(mode: str, options: dict[str, Any]) -> None:
    noise = Image.effect_noise((93, 61), 90)
    image = Image.merge("RGB", [noise.rotate(angle) for angle in (0, 90, 180)]).convert(mode)
    if mode == "CMYK" and "format" in options:
        image = image.convert("RGB")
    data = encoded(image, **({"format": "JPEG"} | options))
    np.testing.assert_array_equal(
        PIXELS.from_bytes(data, LIMITS), np.asarray(IMAGE.from_bytes(data, LIMITS))
    )


@pytest.mark.parametrize(
    ("side", "decoded"), [(200, (200, 400)), (201, (300, 600)), (401, (500, 1000))]
)
def test_apply_the_orientation_at_a_reduced_size_too(side: int, decoded: tuple[int, int]) -> None:
    data = encoded(Image.new("RGB", (1600, 800), RED), "JPEG", exif=turned())
    image = IMAGE.from_bytes(data, Limits(side=side))
    assert (image.size, size_as_sent(image)) == (decoded, (800, 1600))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_keep_the_size_as_sent_of_a_reduced_jpeg(orientation: int) -> None:
    """Reduced, the image is a square."""
    data = encoded(Image.new("L", (801, 808)), "JPEG", exif=turned(orientation))
    image = IMAGE.from_bytes(data, Limits(side=100))
    sent = (801, 808) if orientation < 5 else (808, 801)
    assert (image.size, size_as_sent(image)) == ((101, 101), sent)


def test_read_no_size_as_sent_from_a_file() -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text(SENT, "a text")
    image = IMAGE.from_bytes(encoded(Image.new("RGB", (3, 2)), "PNG", pnginfo=texts), LIMITS)
    assert size_as_sent(image) == (3, 2)


def test_count_the_characters_of_an_instance_of_several_texts() -> None:
    codec = Fields("query", lists=("documents",))
    assert codec.length({"query": "ab", "documents": ["c", "de"]}) == 5
    assert codec.length("a text") == 6
