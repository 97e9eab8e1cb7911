"""Hostile images over HTTP: 400, and the server that answered them goes on."""

import pytest

from tests.endpoint.test_errors import expect, picture
from tests.support.harness import Server
from tests.support.hostile_images import REFUSED


@pytest.mark.parametrize("name", [name for name in REFUSED if "WebP" not in name and "64 MB" not in name])
def test_a_hostile_image_is_a_400_and_the_next_caller_is_answered(server: Server, name: str) -> None:
    make, message = REFUSED[name]
    pids = server.pid("tritonserver"), server.pid("gunicorn")
    reply = server.post(params={"model_name": "resnet"}, data=make(), headers={"Content-Type": "image/png"})
    expect(reply, 400, "decoding_error", message)
    good = server.post(params={"model_name": "resnet"}, data=picture(), headers={"Content-Type": "image/png"})
    assert (good.status_code, server.pid("tritonserver"), server.pid("gunicorn")) == (200, *pids)


def test_a_damaged_image_is_a_400_wherever_it_is_cut(server: Server) -> None:
    for format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "DDS"):
        whole = picture(format)
        for tenths in range(1, 9):  # some formats do without their last bytes
            reply = server.post(params={"model_name": "resnet"}, data=whole[: len(whole) * tenths // 10])
            expect(reply, 400, "decoding_error")
