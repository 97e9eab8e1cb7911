"""Instances become batches, bounded in number and in pixels, and predictions in the same order."""

import contextvars
import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clients.base import Model, ModelClient, Tensors, TensorSpec
from serving.bodies.invocation import Item
from serving.codecs import IMAGE, TEXT, ImageCodec, Limits
from serving.errors import DecodingError, InferenceFailed, TooLate
from serving.inference import deadline
from serving.inference.decoding import Decoder
from serving.inference.pipeline import Pipeline
from serving.inference.served_model import ServedModel
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import Reply


class Brightness(ModelClient):
    """An image's first pixel, sent to a model that gives back what it gets."""

    codec = IMAGE
    example = b""

    def preprocess(self, instances: Sequence[Any]) -> Tensors:
        rows = [np.asarray(image)[0, 0, 0] for image in instances]
        return {"x": np.array(rows, np.float32)[:, None], "not an input": np.zeros(1)}

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[Any]:
        return [float(row[0]) for row in outputs["x"]]


class Echo(TritonGateway):
    """Gives every call's inputs back, and remembers their batch sizes and how many were sent ahead."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", "127.0.0.1:1", 1.0)
        self.batches: list[int] = []
        self.sent: list[int] = []

    def call(self, model: str, version: str, inputs: Mapping[str, Any], *_: Any) -> Any:
        assert set(inputs) == {"x"}
        self.batches.append(len(inputs["x"]))
        return Answer(dict(inputs), self.sent)


class Answer:
    def __init__(self, outputs: dict[str, Any], sent: list[int]) -> None:
        self.outputs, self._sent = outputs, sent

    def send(self) -> None:
        self._sent.append(len(self.outputs["x"]))

    def result(self) -> Reply:
        return Reply("7", self.outputs)

    def cancel(self) -> None:
        pass


def item(level: int, side: int = 4) -> Item:
    buffer = io.BytesIO()
    Image.new("L", (side, side), level).save(buffer, "PNG")
    return Item("instances", raw=buffer.getvalue())


@pytest.fixture
def echo() -> Echo:
    return Echo()


def client_of(max_batch_size: int, client: type[ModelClient] = Brightness) -> ServedModel:
    spec = (TensorSpec("x", "FP32", (1,)),)
    model = Model("m", Path("m"), spec, spec, max_batch_size)
    return ServedModel(model, client(model))


def test_instances_are_split_at_max_batch_size_and_keep_their_order(echo: Echo) -> None:
    done = Pipeline(echo, Decoder(Limits())).predict(client_of(4), "", [item(n) for n in range(10)], {})
    assert echo.batches == [4, 4, 2]
    assert done.predictions == [float(n) for n in range(10)]
    assert done.version == "7"
    assert done.instance.getpixel((0, 0)) == (0, 0, 0)


def test_a_batch_is_sent_ahead_only_where_another_is_prepared_or_waited_for_meanwhile(echo: Echo) -> None:
    pipeline = Pipeline(echo, Decoder(Limits()))
    pipeline.predict(client_of(4), "", [item(n) for n in range(4)], {})
    assert echo.sent == []
    pipeline.predict(client_of(4), "", [item(n) for n in range(6)], {})
    assert echo.sent == [4, 2]


def test_large_images_make_smaller_batches(echo: Echo) -> None:
    """16 pixels each, and 40 are allowed: a batch ends with the image that reaches the bound."""
    done = Pipeline(echo, Decoder(Limits(max_image_pixels=40))).predict(
        client_of(32), "", [item(n) for n in range(7)], {}
    )
    assert echo.batches == [3, 3, 1]
    assert done.predictions == [float(n) for n in range(7)]


def test_a_wrong_instance_is_counted_within_the_request(echo: Echo) -> None:
    items = [item(0), item(1), Item("instances", raw=b"no image")]
    with pytest.raises(DecodingError, match="instance 2, field 'instances'"):
        Pipeline(echo, Decoder(Limits())).predict(client_of(2), "", items, {})


class Meeting(ImageCodec):
    """Loads images only two at a time."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=10)

    def load(self, opened: Any) -> Any:
        self._both.wait()
        return super().load(opened)


class InPairs(Brightness):
    codec = Meeting()


def test_images_of_a_request_are_loaded_at_once(echo: Echo) -> None:
    served = client_of(4, InPairs)
    done = Pipeline(echo, Decoder(Limits(), threads=2)).predict(served, "", [item(n) for n in range(4)], {})
    assert done.predictions == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("damaged", [{1, 3}, {1, 2}, {3}])
def test_of_several_wrong_instances_the_first_is_told(echo: Echo, damaged: set[int]) -> None:
    """Some are no images, others end too early, which is found out later."""
    items = [item(n, side=64) for n in range(5)]
    for number in damaged:
        raw = items[number].raw or b""
        items[number] = Item("instances", raw=raw[: len(raw) // 2] if number % 2 else b"no image")
    with pytest.raises(DecodingError, match=f"instance {min(damaged)}, field 'instances'"):
        Pipeline(echo, Decoder(Limits(), threads=3)).predict(client_of(8), "", items, {})
    assert echo.batches == []


class Loser(Brightness):
    """Forgets what it was asked."""

    def postprocess(self, *_: Any) -> list[Any]:
        return []


def test_a_client_that_loses_a_prediction_is_found_out(echo: Echo) -> None:
    with pytest.raises(InferenceFailed, match="0 predictions of 1 instances"):
        Pipeline(echo, Decoder(Limits())).predict(client_of(2, Loser), "", [item(0)], {})


class Slow(Brightness):
    """Its second batch takes more time than the request has."""

    def preprocess(self, instances: Sequence[Any]) -> Tensors:
        if instances[0].getpixel((0, 0)) == (1, 1, 1):
            time.sleep(2.2)
        return super().preprocess(instances)


def in_time(seconds: float, predict: Callable[[], object]) -> None:
    """With so much time left, as within a request."""

    def run() -> None:
        deadline.begin(time.time(), seconds)
        predict()

    contextvars.copy_context().run(run)


def test_once_the_request_s_time_is_over_no_further_batch_is_prepared(echo: Echo) -> None:
    items = [item(n) for n in range(10)]
    with pytest.raises(TooLate):
        in_time(2, lambda: Pipeline(echo, Decoder(Limits())).predict(client_of(1, Slow), "", items, {}))
    assert echo.batches == [1, 1]


def test_a_request_waits_for_its_turn_no_longer_than_its_caller(echo: Echo) -> None:
    pipeline = Pipeline(echo, Decoder(Limits()))
    with pipeline.decoder.turn("image", 1.0), pytest.raises(TooLate):
        in_time(0.05, lambda: pipeline.predict(client_of(1), "", [item(0)], {}))
    assert echo.batches == []
    assert pipeline.predict(client_of(1), "", [item(5)], {}).predictions == [5.0]


class Length(ModelClient):
    """A text's, sent to the same model."""

    codec = TEXT
    example = b""

    def preprocess(self, instances: Sequence[Any]) -> Tensors:
        return {"x": np.array([[len(text)] for text in instances], np.float32)}

    def postprocess(self, outputs: Tensors, *_: Any) -> list[Any]:
        return [float(row[0]) for row in outputs["x"]]


def test_a_text_does_not_wait_behind_images(echo: Echo) -> None:
    pipeline = Pipeline(echo, Decoder(Limits()))
    with pipeline.decoder.turn("image", 1.0):
        done = pipeline.predict(client_of(1, Length), "", [Item("instances", raw=b"four")], {})
    assert done.predictions == [4.0]
