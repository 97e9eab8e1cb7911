"""Hostile images over HTTP: 400, and the server that answered them goes on."""

import pytest
from PIL import Image

from serving.codecs import encode_image
from serving.errors import DecodingError
from tests.endpoint.test_errors import expect, picture
from tests.support.harness import Server
from tests.support.hostile_images import REFUSED

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("name", [name for name in REFUSED if "WebP" not in name and "64 MB" not in name])
def test_a_hostile_image_is_a_400_and_the_next_caller_is_answered(server: Server, name: str) -> None:
    make, message = REFUSED[name]
    pids = server.pid("tritonserver"), server.pid("gunicorn")
    reply = server.post(params={"model_name": "resnet"}, data=make(), headers={"Content-Type": "image/png"})
    expect(reply, 400, "decoding_error", message)
    good = server.post(params={"model_name": "resnet"}, data=picture(), headers={"Content-Type": "image/png"})
    assert (good.status_code, server.pid("tritonserver"), server.pid("gunicorn")) == (200, *pids)


def test_a_picture_too_wide_for_jpeg_is_400_and_a_png() -> None:
    wide = Image.new("RGB", (65_501, 1))
    with pytest.raises(DecodingError):
        encode_image(wide, "image/jpeg")
    assert encode_image(wide.crop((0, 0, 65_500, 1)), "image/jpeg")
    assert encode_image(wide, "image/png")


def test_a_damaged_image_is_a_400_wherever_it_is_cut(server: Server) -> None:
    for format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "DDS"):
        whole = picture(format)
        for tenths in range(1, 9):  # some formats do without their last bytes
            reply = server.post(params={"model_name": "resnet"}, data=whole[: len(whole) * tenths // 10])
            expect(reply, 400, "decoding_error")
