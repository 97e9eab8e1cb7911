"""Tests that instances are split into batches, bounded in number and pixels, and that predictions
keep their order."""

import base64
import gc
import io
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from clients.base import Model, ModelClient, Tensors, TensorSpec, TooManyRows
from serving.bodies import schemas
from serving.bodies.decoder import LONG, Decoder, Item
from serving.bodies.instances import Instances
from serving.bodies.kserve import TensorBody
from serving.bodies.lines import JsonLines
from serving.budget import MOST_ROWS, NEVER, PROCESSOR_PART, Deadline
from serving.codecs import IMAGE, TEXT, Codec, ImageCodec, Limits
from serving.errors import DecodingError, InvalidRequest, TooLate
from serving.job import Run
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.request_memory import INPUT, OUTPUT, TOKEN
from serving.triton.tensors import InferRequest
from tests.bodies.echo import Account, Echo, opened
from tests.support.deadlines import within
from tests.support.harness import PATIENCE, encoded

pytestmark = pytest.mark.unit


class Brightness(ModelClient):
    """A client that sends the first pixel of an image to a model that returns its input."""

    codec = IMAGE
    example = b""

    def prepare(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        rows = [np.asarray(image)[0, 0, 0] for image in instances]
        return {"x": np.array(rows, np.float32)[:, None], "not an input": np.zeros(1)}

    def postprocess(
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[Any],
        parameters: Mapping[str, Any],
    ) -> list[Any]:
        return [float(row[0]) for row in outputs["x"]]


class Recorder(Echo):
    """Answers each call with its inputs. Records the sizes of batches and the number of batches
    that were sent ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.sent: list[int] = []
        self.asked: list[tuple[str, ...]] = []

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        (x,) = request.inputs
        assert x.name == "x"
        self.asked.append(tuple(request.outputs))
        self.batches.append(x.shape[0])
        answer = super().infer(request, deadline)
        answer.send = lambda: self.sent.append(x.shape[0])
        return answer


def item(level: int, side: int = 4) -> Item:
    return Item("instances", raw=encoded(Image.new("L", (side, side), level)))


def in_base64(level: int, side: int = 4) -> str:
    return base64.b64encode(item(level, side).raw or b"").decode()


def items(count: int) -> list[Item]:
    return [item(level) for level in range(count)]


def predict(
    echo: Recorder,
    served: ServedModel,
    items: list[Item],
    decoder: Decoder | None = None,
    deadline: Deadline = NEVER,
) -> tuple[list[Any], str]:
    """Return the predictions and the version that answered."""
    request = Request("id", reply_deadline=deadline, decoder=decoder or Decoder(Limits()))
    results = list(Run(Instances(items).bind(served, request), echo).results())
    predictions = [prediction for result in results for prediction in result.predictions]
    return predictions, results[-1].version


@pytest.fixture
def echo() -> Recorder:
    return Recorder()


def client_of(max_batch_size: int, client: type[ModelClient] = Brightness) -> ServedModel:
    spec = (TensorSpec("x", "FP32", (1,)),)
    model = Model("m", Path("m"), spec, spec, max_batch_size)
    return ServedModel(model, client(model))


def test_split_instances_at_max_batch_size_in_order(echo: Recorder) -> None:
    assert predict(echo, client_of(4), items(10)) == ([float(n) for n in range(10)], "1")
    assert echo.batches == [4, 4, 2]


def test_send_a_batch_ahead_only_if_another_follows(echo: Recorder) -> None:
    predict(echo, client_of(4), items(4))
    assert echo.sent == []
    predict(echo, client_of(4), items(6))
    assert echo.sent == [4, 2]


def test_make_smaller_batches_of_large_images(echo: Recorder) -> None:
    """Images have 16 pixels and a batch may have 40, so a batch ends before the image that would
    exceed the limit."""
    decoder = Decoder(Limits(max_image_pixels=40))
    predictions, _ = predict(echo, client_of(32), items(7), decoder)
    assert echo.batches == [2, 2, 2, 1]
    assert predictions == [float(n) for n in range(7)]


class OneOutput(Brightness):
    outputs = ("x",)


@pytest.mark.parametrize(("client", "asked"), [(Brightness, ()), (OneOutput, ("x",))])
def test_ask_only_for_outputs_of_the_client(
    client: type[ModelClient], asked: tuple[str, ...], echo: Recorder
) -> None:
    predict(echo, client_of(4, client), items(6))
    assert echo.asked == [asked, asked]


class Painter(Brightness):
    side = 8

    def draw(self, instance: Any, prediction: Any) -> Image.Image:
        image: Image.Image = instance
        return image


def test_draw_on_a_large_jpeg_at_its_full_size(echo: Recorder) -> None:
    jpeg = Item("instances", raw=encoded(Image.new("RGB", (80, 64)), "JPEG"))
    request = Request("id", accept="image/png")
    reply = Instances([jpeg]).bind(client_of(1, Painter), request).answer(echo)
    with Image.open(io.BytesIO(reply.content)) as drawn:
        assert drawn.size == (80, 64)


def test_report_the_index_of_an_invalid_instance(echo: Recorder) -> None:
    wrong = Item("instances", raw=b"no image")
    with pytest.raises(DecodingError) as raised:
        predict(echo, client_of(2), [*items(2), wrong])
    assert (raised.value.instance, raised.value.field) == (2, "instances")


TRUNCATED = Item("instances", raw=encoded(Image.radial_gradient("L"))[:1000])


@pytest.mark.parametrize(
    "body",
    [
        Instances([item(0), Item("instances", raw=b"no image")]),
        Instances([TRUNCATED, TRUNCATED]),  # images are loaded in several threads
        JsonLines(b"not JSON\n"),
        JsonLines(b"[1]\n[2]\n"),  # no images
    ],
)
def test_free_a_refused_body_without_the_garbage_collector(
    body: Instances | JsonLines, echo: Recorder
) -> None:
    """If an error referred to itself, the whole request would stay in memory until a garbage
    collection, which stops all threads for a time that depends on the number of objects."""
    gc.disable()
    try:
        job = body.bind(client_of(4), Request("id", decoder=Decoder(Limits())))
        kept = weakref.ref(job)
        with suppress(DecodingError):
            job.answer(echo)
        del job
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("names", [["y"], ["x0", "x1"], ["x\0"], [""]])
@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_keep_unknown_tensors_from_triton(echo: Recorder, what: str, names: list[str]) -> None:
    one = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    document: dict[str, Any] = {"inputs": [one]}
    document[what] = [{**(one if what == "inputs" else {}), "name": name} for name in names]
    body = TensorBody(msgspec.convert(document, schemas.Tensors), length=1000)
    with pytest.raises(InvalidRequest, match=f"unknown {what[:-1]} '{names[0]}'; .*known: x"):
        body.bind(client_of(4), Request("id")).answer(echo)
    assert echo.batches == []


class Meeting(ImageCodec):
    """A codec that can load images only if two threads do so at the same time."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=PATIENCE)

    def load(self, opened: Any) -> Any:
        self._both.wait()
        return super().load(opened)


class InPairs(Brightness):
    codec = Meeting()


def test_load_the_images_of_a_request_in_parallel(echo: Recorder) -> None:
    served = client_of(4, InPairs)
    predictions, _ = predict(echo, served, items(4), Decoder(Limits(), threads=2))
    assert predictions == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("damaged", [{1, 3}, {1, 2}, {3}])
def test_report_the_first_of_several_wrong_instances(echo: Recorder, damaged: set[int]) -> None:
    """Some files are not images. Others are truncated, which is noticed only later."""
    sent = [item(n, side=64) for n in range(5)]
    for number in damaged:
        sent[number] = TRUNCATED if number % 2 else Item("instances", raw=b"no image")
    with pytest.raises(DecodingError) as raised:
        predict(echo, client_of(8), sent, Decoder(Limits(), threads=3))
    assert (raised.value.instance, raised.value.field) == (min(damaged), "instances")
    assert echo.batches == []


def test_count_the_time_of_decoding_threads(echo: Recorder) -> None:
    taken = []

    class Slow(ImageCodec):
        def load(self, opened: Any) -> Any:
            began = thread_time()
            while thread_time() - began < 0.1:
                pass
            taken.append(opened)
            return super().load(opened)

    class Client(Brightness):
        codec = Slow()

    with within(NEVER, seconds=PROCESSOR_PART * 0.4), pytest.raises(TooLate, match="processor"):
        predict(echo, client_of(4, Client), items(16), Decoder(Limits(), 1, 2))
    assert len(taken) == 4


def test_wait_for_a_turn_no_longer_than_the_caller(echo: Recorder) -> None:
    decoder = Decoder(Limits())
    with decoder.turn("image", False, NEVER), pytest.raises(TooLate):
        predict(echo, client_of(1), [item(0)], decoder, Deadline.after(0.05))
    assert echo.batches == []
    assert predict(echo, client_of(1), [item(5)], decoder)[0] == [5.0]


class Length(ModelClient):
    """A client that sends the length of a text to the model."""

    codec: Codec = TEXT
    example = b""

    def prepare(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        return {"x": np.array([[len(text)] for text in instances], np.float32)}

    def postprocess(self, outputs: Tensors, *_: Any) -> list[Any]:
        return [float(row[0]) for row in outputs["x"]]


def test_let_a_text_pass_waiting_images(echo: Recorder) -> None:
    decoder = Decoder(Limits())
    with decoder.turn("image", False, NEVER):
        answer, _ = predict(echo, client_of(1, Length), [Item("instances", raw=b"four")], decoder)
    assert answer == [4.0]


def test_let_a_small_image_pass_waiting_large_ones(echo: Recorder) -> None:
    decoder = Decoder(Limits())
    with decoder.turn("image", True, NEVER):
        assert predict(echo, client_of(1), [item(5)], decoder)[0] == [5.0]
        large = item(0, side=2000)
        with pytest.raises(TooLate):
            predict(echo, client_of(1), [large], decoder, Deadline.after(0.05))


def test_let_a_small_text_pass_waiting_long_ones(echo: Recorder) -> None:
    decoder = Decoder(Limits())
    client = client_of(2, Length)
    with decoder.turn("text", True, NEVER):
        assert predict(echo, client, [Item("instances", raw=b"four")], decoder)[0] == [4.0]
        halves = [Item("instances", raw=b"#" * (LONG // 2 + 1))] * 2
        with pytest.raises(TooLate):
            predict(echo, client, halves, decoder, Deadline.after(0.05))


def test_send_a_batch_ahead_only_if_both_fit_into_memory(echo: Recorder) -> None:
    """Decoding an image takes 128 bytes and its tensors take 28. Of these, 92 bytes are kept until
    it is answered."""
    large, small = Account(300), Account(200)
    with opened(large):
        assert predict(echo, client_of(1), items(3))[0] == [0.0, 1.0, 2.0]
    assert (echo.sent, large.size, large.peak) == ([1, 1, 1], 0, 248)
    with opened(small):
        assert predict(echo, client_of(1), items(3))[0] == [0.0, 1.0, 2.0]
    assert (small.size, small.peak) == (0, 156)


def test_give_back_the_memory_of_a_batch_that_cannot_be_opened_ahead(echo: Recorder) -> None:
    """There is memory for the first image of the second batch, but not for its second image."""
    sent = [Item("instances", value={"b64": in_base64(level)}) for level in range(4)]
    account = Account(750)
    with opened(account):
        assert predict(echo, client_of(2), sent)[0] == [0.0, 1.0, 2.0, 3.0]
    assert account.size == 0


def test_hold_no_memory_of_a_failed_group_of_lines(echo: Recorder) -> None:
    peaks = []
    for last in (in_base64(3, side=200), "bm8gaW1hZ2U="):
        images = [in_base64(level, side=200) for level in range(3)]
        lines = "".join(f'{{"b64": "{image}"}}\n' for image in [*images, last]).encode()
        request = Request("id", decoder=Decoder(Limits()))
        account = Account()
        with opened(account):
            reply = JsonLines(lines).bind(client_of(1), request).answer(echo)
        assert len(reply.content.splitlines()) == 4
        peaks.append(account.peak)
    without_error, with_error = peaks
    assert with_error <= 1.1 * without_error


def test_free_a_batch_while_the_next_one_waits_for_memory(echo: Recorder) -> None:
    made: list[weakref.ref[Any]] = []
    alive = []

    class Remembering(Brightness):
        def prepare(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
            tensors = super().prepare(instances, parameters)
            made.extend(map(weakref.ref, (*instances, tensors["x"])))
            return tensors

    class Looking(Account):
        def take(self, size: int, step: str) -> None:
            if size and not self.size:
                alive.append([reference() for reference in made])
            super().take(size, step)

    with opened(Looking(200)):
        predict(echo, client_of(1, Remembering), items(3))
    assert alive == [[], [None] * 2, [None] * 4]


class Windows(Brightness):
    """A client that makes 400 rows from each instance, and keeps an object for each row."""

    def prepare(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        most = MOST_ROWS // 400
        if len(instances) > most:
            raise TooManyRows(most)
        rows = 400 * len(instances)
        return {"x": np.zeros((rows, 100), np.float32), "kept": np.empty(rows, np.object_)}

    def postprocess(self, outputs: Tensors, *_: Any) -> list[Any]:
        return [0.0] * (len(outputs["x"]) // 400)


def test_bound_the_rows_of_a_batch_and_reserve_all_of_them(echo: Recorder) -> None:
    account = Account()
    with opened(account):
        assert predict(echo, client_of(8, Windows), items(5))[0] == [0.0] * 5
    assert sum(echo.batches) == 2000
    assert account.size == 0
    assert account.peak >= 2 * 400 * (100 * TOKEN + 4 * (INPUT + OUTPUT))


def test_wait_for_memory_no_longer_than_the_caller(echo: Recorder) -> None:
    account = Account(100)
    with opened(account), pytest.raises(TooLate):
        predict(echo, client_of(1), [item(0)], None, Deadline.after(0.05))
    assert account.size == 0
