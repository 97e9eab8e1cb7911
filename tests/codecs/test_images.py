"""Tests that hostile image files are refused before they take memory or processor time, and that
damaged files are reported as the caller's mistake. To measure an image, a new process decodes it
and reports by how much its memory grew."""

import logging
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from serving.codecs import ENCODED_IMAGE, IMAGE, Limits
from serving.codecs.image import Header, most_memory
from serving.errors import DecodingError
from tests.support.harness import ROOT, encoded
from tests.support.hostile_images import LARGEST, PIXELS, REFUSED, png, tiff, turned

BESIDE = 32 * 2**20  # bytes for strips in flight, a header of 8 MB and its copies
# pytest replaces Python's own filters
pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore::UserWarning:PIL")]

MEASURE = """
import os, sys, traceback
from serving.codecs import IMAGE, Limits
from serving.errors import DecodingError
def memory(name):
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
def measure(pixels, side, path):
    data = open(path, "rb").read()
    before = memory("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # VmHWM starts anew
    try:
        answer = str(IMAGE.from_bytes(data, Limits(int(pixels), int(side))).size)
    except DecodingError as err:
        answer = str(err)
    print(memory("VmHWM") - before, answer, flush=True)
for line in sys.stdin:
    if not (child := os.fork()):
        try:
            measure(*line.split())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        print("ended with", status, flush=True)
"""
Measured = Callable[[bytes, int], tuple[int, str]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Return a function that decodes an image in a new process. It returns the growth of the
    process's memory, and its answer."""
    file = tmp_path_factory.mktemp("measured") / "image"
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE],
        cwd=ROOT,
        text=True,
        bufsize=1,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        requests, answers = process.stdin, process.stdout
        assert requests and answers

        def measure(data: bytes, side: int) -> tuple[int, str]:
            file.write_bytes(data)
            requests.write(f"{PIXELS} {side} {file}\n")
            rise, _, answer = answers.readline().strip().partition(" ")
            # otherwise a warning was logged; logs must not contain anything from a caller's file
            return int(rise), answer

        yield measure
        requests.close()
        assert answers.read() == ""


@pytest.mark.parametrize("name", REFUSED)
def test_refuse_expensive_images_before_decoding_them(name: str, measured: Measured) -> None:
    make, message = REFUSED[name]
    rise, answer = measured(make(), 0)
    assert message in answer
    assert rise < BESIDE


@pytest.mark.parametrize(
    ("name", "side"),
    # the last two are decoded at 5/8 of their size
    [*((name, 0) for name in LARGEST), ("a turned JPEG", 1875), ("a progressive JPEG", 1625)],
)
def test_decode_no_image_beyond_the_memory_limit(name: str, side: int, measured: Measured) -> None:
    data = LARGEST[name]()
    rise, answer = measured(data, side)
    assert answer.startswith("the TIFF image has pixels" if name == "floats" else f"({side or ''}")
    assert (
        rise - len(data)
        < Header(data, Limits(PIXELS)).memory + BESIDE
        < most_memory(PIXELS) + 2 * BESIDE
    )


@pytest.mark.parametrize("name", REFUSED)
def test_pass_no_expensive_image_to_a_model_that_decodes(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(DecodingError, match=message):
        ENCODED_IMAGE.from_bytes(make(), Limits(PIXELS))


def decoded(file: bytes) -> Any:
    return IMAGE.from_bytes(file, Limits())


LEVELS = np.arange(0, 2**16, 16, np.uint16).reshape(64, 64)


@pytest.mark.parametrize(("format", "kind"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_read_a_16_bit_grey_image_as_opencv_does(format: str, kind: str) -> None:
    file = encoded(Image.fromarray(LEVELS.astype(kind)), format)
    wanted = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    assert np.array_equal(decoded(file), wanted)


@pytest.mark.parametrize("format", [".png", ".tiff"])
@pytest.mark.parametrize("channels", [1, 3])
def test_read_the_high_bytes_of_16_bit_images(format: str, channels: int) -> None:
    file = cv2.imencode(format, np.dstack([LEVELS] * channels))[1].tobytes()
    assert np.array_equal(decoded(file), np.dstack([LEVELS >> 8] * 3))


@pytest.mark.parametrize(("alpha", "level"), [(0, 255), (65535, 3)])
def test_lay_an_alpha_channel_of_16_bits_on_white(alpha: int, level: int) -> None:
    file = cv2.imencode(".png", np.array([[[1000, 1000, 1000, alpha]]], np.uint16))[1].tobytes()
    assert decoded(file).getpixel((0, 0)) == (level,) * 3


def test_lay_transparent_grey_of_16_bits_on_white() -> None:
    file = png(colour=4, row=4 * 8, depth=16, side=8)
    assert decoded(file).getcolors() == [(64, (255, 255, 255))]


def test_lay_a_transparent_level_of_16_bits_on_white() -> None:
    file = encoded(Image.fromarray(LEVELS), "PNG", transparency=1600)
    wanted = np.where(LEVELS == 1600, 255, LEVELS >> 8)
    assert np.array_equal(np.asarray(decoded(file))[..., 0], wanted)


@pytest.mark.parametrize(("white_is_zero", "level"), [(0, 255 - 0xAB), (1, 0xAB)])
def test_invert_a_16_bit_tiff_whose_white_is_zero(white_is_zero: int, level: int) -> None:
    file = grey_tiff(16, struct.pack("<2H", 0xABCD, 0xABCD), white_is_zero)
    assert decoded(file).getcolors() == [(2, (level,) * 3)]


def test_read_the_first_8_bits_of_a_12_bit_tiff() -> None:
    file = grey_tiff(12, b"\xab\xca\xbc")
    assert decoded(file).getcolors() == [(2, (0xAB,) * 3)]


def grey_tiff(bits: int, pixels: bytes, photometric: int = 1) -> bytes:
    """Return a TIFF of two pixels in one row."""
    values = {256: 2, 257: 1, 258: bits, 259: 1, 262: photometric, 273: 0, 277: 1, 279: len(pixels)}
    values[273] = len(tiff([(tag, 3, 1, 0) for tag in values]))
    return tiff([(tag, 3, 1, value) for tag, value in values.items()], pixels)


@pytest.mark.parametrize(("kind", "mode"), [("<f4", "F"), ("<i4", "I")])
def test_explain_the_refusal_of_pixels_without_a_defined_white(kind: str, mode: str) -> None:
    file = encoded(Image.fromarray(LEVELS.astype(kind)), "TIFF")
    with pytest.raises(DecodingError, match=rf"mode {mode}\); send 8 or 16 unsigned bits"):
        decoded(file)


def test_convert_the_pixels_of_every_strip() -> None:
    """A strip has 2^20 pixels, so this image has seven strips and a part of another."""
    image = Image.linear_gradient("L").resize((2700, 2900))
    image.putalpha(255)
    assert (
        IMAGE.from_bytes(encoded(image, "PNG"), Limits()).tobytes()
        == image.convert("RGB").tobytes()
    )


def test_count_a_progressive_jpeg_s_coefficients_at_full_size() -> None:
    data = encoded(Image.new("RGB", (1600, 1600)), "JPEG", progressive=True)
    reduced = IMAGE.memory(IMAGE.open(data, Limits(side=200)))
    assert 1600 * 1600 * 6 < reduced < IMAGE.memory(IMAGE.open(data, Limits()))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_decode_a_jpeg_between_pillow_s_sizes_without_cropping(mode: str) -> None:
    """Pillow itself decodes modes that libjpeg cannot convert to RGB, such as CMYK."""
    data = encoded(Image.radial_gradient("L").resize((768, 576)).convert(mode), "JPEG", quality=95)
    whole, reduced = (IMAGE.from_bytes(data, Limits(side=side)) for side in (0, 358))
    assert reduced.size == ((768, 576) if mode == "CMYK" else (480, 360))
    assert np.abs(difference(whole.resize(reduced.size), reduced)).max() <= 3


def test_skip_junk_in_a_jpeg_as_pillow_does() -> None:
    plain = encoded(Image.radial_gradient("L").resize((768, 576)), "JPEG")
    at = plain.index(b"\xff\xc0")
    whole, reduced = (
        IMAGE.from_bytes(plain[:at] + b"junk" + plain[at:], Limits(side=side)) for side in (0, 358)
    )
    assert reduced.tobytes() == whole.tobytes()
    assert IMAGE.from_bytes(plain, Limits(side=358)).size == (480, 360)


def difference(one: Image.Image, other: Image.Image) -> NDArray[np.int16]:
    return np.asarray(one, np.int16) - np.asarray(other, np.int16)


def damaged(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(min(len(changed), 400))] = chance.choice(
            (0, 1, 127, 128, 255, chance.randrange(256))
        )
    return bytes(changed[: chance.randint(1, len(changed))] if chance.random() < 0.2 else changed)


def test_name_curl_s_option_for_a_jpeg_without_its_line_ends() -> None:
    chance = random.Random(1)
    for _ in range(60):
        noise = Image.frombytes("RGB", (320, 240), chance.randbytes(3 * 320 * 240))
        # `curl -d @photo.jpg` removes these bytes
        sent = encoded(noise, "JPEG").translate(None, b"\r\n\0")
        with pytest.raises(DecodingError, match="--data-binary"):
            IMAGE.from_bytes(sent, Limits())


@pytest.mark.parametrize(
    "format", ["JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "DDS"]
)
def test_blame_the_caller_for_a_damaged_file(format: str, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(format)
    # the same bytes in each run
    noise = Image.frombytes("RGB", (32, 24), chance.randbytes(3 * 32 * 24))
    data = encoded(noise, format, exif=turned())
    refused = 0
    with caplog.at_level(logging.DEBUG):
        for turn in range(400):
            try:
                IMAGE.from_bytes(
                    damaged(data, chance), Limits(max_image_pixels=10**6, side=14 * (turn % 2))
                )
            except DecodingError:
                refused += 1
    assert refused > 50
    assert caplog.messages == []
