"""Lists hostile requests: small or ordinary requests that could take a disproportionate amount of
memory or processor time. Each has the status that it gets and the maximum cost that it may have. A
new hostile request is a row here, and a new hostile image file is a row in
tests/support/hostile_images.py. Nothing else in tests/ sends hostile requests."""

import gzip
import itertools
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import mul
from typing import Any

import numpy as np
import requests
from PIL import Image

from serving.bodies.kserve import BINARY_TYPE
from serving.headers import CSV, JSON_LINES, JSON_TYPE, LIBSVM, NPY_TYPE
from tests.bodies.echo import LARGEST, ONE, many, npy_file, tensor
from tests.support.harness import encoded, npy
from tests.support.harness import tensor as numbers
from tests.support.hostile_images import REFUSED, png

# Rows that may get 504 are sent to a server with this time limit. The front may use an eighth of
# it.
DEADLINE = 10
# maximum processor time of the front for a row, not counting the model's own run
PROCESSOR_SECONDS = 4.0
PATIENT_SECONDS = 10.0  # the same for most rows of ROOM, which are sent with the default time limit
MEGABYTES = 1_500  # maximum memory of the front for a row, above its idle memory
# for a body of 25 MB, because JSON numbers take 13 times the length of their text
MEGABYTES_OF_A_BODY = 450
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Hostile:
    """A request that `callers` send at once, and the statuses that it may get. `body` creates its
    body."""

    model: str
    body: Callable[[], bytes]
    statuses: tuple[int, ...]
    kind: str = JSON_TYPE
    parameters: dict[str, Any] = field(default_factory=dict)  # parameters of the query string
    headers: dict[str, str] = field(default_factory=dict)
    is_packed: bool = True
    callers: int = 1
    megabytes: int = MEGABYTES
    seconds: float = PROCESSOR_SECONDS
    method: str = "POST"
    path: str = "/invocations"
    names: int = 0  # if not 0, the callers send this many requests, each for another model

    def sent(self, url: str, timeout: float) -> Callable[[], requests.Response]:
        """Return a function that sends the request. The body is created only once."""
        data = gzip.compress(self.body()) if self.is_packed else self.body()
        headers = {"Content-Type": self.kind, **self.headers}
        headers |= {"Content-Encoding": "gzip"} if self.is_packed else {}
        numbers = itertools.count()

        def send() -> requests.Response:
            name = f"{self.model}{next(numbers)}" if self.names else self.model
            params = {"model_name": name, **self.parameters} if name else self.parameters
            return requests.request(
                self.method,
                url + self.path,
                params=params,
                data=data,
                headers=headers,
                timeout=timeout,
            )

        return send


def text(of: str, length: int) -> str:
    return (of * (length // len(of) + 1))[:length]


def instances(*values: Any, **parameters: Any) -> Callable[[], bytes]:
    return lambda: json.dumps({"instances": values, "parameters": parameters}).encode()


def repeated(value: Any, count: int, **parameters: Any) -> Callable[[], bytes]:
    return lambda: json.dumps({"instances": [value] * count, "parameters": parameters}).encode()


def ranking(query: int, documents: int, length: int, word: str = "# ") -> Callable[[], bytes]:
    own = {"query": text(word, query), "documents": [text(word, length)] * documents}
    return instances(own)


def names(count: int, name: str = "a") -> str:
    return ",".join([name] * count)


def deep(zeros: int) -> bytes:
    """Return 31 nested lists, followed by many numbers."""
    return b'{"x":[%b,%b0]}' % (b"[" * 31 + b"0" + b"]" * 31, b"0," * zeros)


def noise(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    return encoded(Image.fromarray(pixels), "PNG")


def pictures(count: int, **parameters: Any) -> Callable[[], bytes]:
    return repeated({"b64": b64encode(noise(16, 16)).decode()}, count, **parameters)


SLOW = (200, 400, 413, 504)

# The comments say how many seconds of processor time a row took in the front before it was limited.
TIME: dict[str, Hostile] = {
    # 28 s
    "a ranking of a long query": Hostile("ranking", ranking(4_000, 1_000, 20_000), SLOW),
    # 20 s
    "a ranking of long documents": Hostile("ranking", ranking(100, 1_000, 25_000), SLOW),
    # 35 s
    "a ranking of two long texts": Hostile("ranking", ranking(51_200, 80, 51_200), SLOW),
    # 33 s
    "texts of hash signs": Hostile("opinions", repeated("#" * 51_200, 480), SLOW),
    # 28 s
    "entities of hash signs": Hostile(
        "entities", repeated("#" * 100_000, 240, stride=1, aggregation_strategy="average"), SLOW
    ),
    # 17 s
    "a million lines": Hostile("resnet", lambda: b"1\n" * 1_000_000, SLOW, JSON_LINES),
    # 3 s
    "300,000 lines of objects": Hostile("numbers", lambda: b"{}\n" * 300_000, SLOW, JSON_LINES),
    # 15 s
    "lists in lists beside numbers": Hostile(
        "", lambda: deep(12_000_000), SLOW, path="/v2/models/numbers/generate"
    ),
    # 26 s
    "every box of a detector": Hostile(
        "boxes", pictures(64, confidence=0, iou=1, max_detections=30_000), (400,)
    ),
    # 19 s
    "the most boxes of a detector": Hostile(
        "boxes", pictures(64, confidence=0, iou=1, max_detections=1_000), SLOW
    ),
    # 15 s
    "the most boxes that overlap": Hostile(
        "boxes", pictures(64, confidence=0, iou=0.5, max_detections=1_000), SLOW
    ),
    # 13 s
    "classes of 24 MB": Hostile("boxes", pictures(1, classes=names(12_000_000, "0")), (400,)),
    # 8 s
    "labels to ignore of 24 MB": Hostile(
        "entities", repeated("a dog", 32, ignore_labels=names(12_000_000)), (400,)
    ),
    # 11 s
    "answers of many windows": Hostile(
        "answers",
        repeated(
            {"question": "a", "context": text("a ", 260_000)}, 1, top_k=100, max_answer_len=512
        ),
        SLOW,
    ),
    # 9 s
    "answers of the most windows": Hostile(
        "answers",
        repeated(
            {"question": "a", "context": text("a ", 260_000)},
            32,
            top_k=100,
            max_answer_len=512,
            doc_stride=250,
        ),
        SLOW,
    ),
    # 7 s
    "tokens for many masks": Hostile(
        "compact_masks", repeated(text("[MASK] ", 7 * 32) + text("a ", 800), 64, top_k=62), SLOW
    ),
    # 10 s
    "labels of long texts": Hostile(
        "zero_shot",
        repeated(
            {"text": text("# ", 50_000), "candidate_labels": [text("a", n) for n in range(1, 101)]},
            32,
        ),
        SLOW,
    ),
    # 5 s, and /ping returned 504 meanwhile
    "metrics": Hostile(
        "", lambda: b"", (200, 503), method="GET", path="/metrics", is_packed=False, callers=400
    ),
    # 6 s; the small picture of another caller waited for 54 s, so most of its calls got 504; each
    # of these pictures takes 0.6 s
    "forty pictures of 89 million pixels": Hostile(
        "resnet",
        lambda: png(0, 1180, depth=1, side=9433),
        SLOW,
        "image/png",
        is_packed=False,
        callers=40,
        seconds=2 * DEADLINE,
    ),
}


def numbered(count: int) -> bytes:
    return b",".join(b'"%x":1' % number for number in range(count))


def refused(
    model: str, body: Callable[[], bytes], kind: str = JSON_TYPE, encoding: str = ""
) -> Hostile:
    """Return the row for a body that would become large, and is refused."""
    return Hostile(
        model,
        body,
        (400, 413),
        kind,
        headers={"Content-Encoding": encoding} if encoding else {},
        is_packed=False,
        megabytes=MEGABYTES_OF_A_BODY,
    )


def npy_row(model: str, kind: Any, shape: tuple[int, ...], length: int = 0) -> Hostile:
    return refused(model, lambda: npy_file(kind, shape, bytes(length)), NPY_TYPE)


STRINGS = (
    b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,6500000],'
    b'"parameters":{"binary_data_size":26000000}}]}'
)
BODIES: dict[str, Hostile] = {
    "instances: numbers": refused("json", lambda: b'{"instances":[%b]}' % many(b"0", 12_000_000)),
    "instances: objects": refused("json", lambda: b'{"instances":[%b]}' % many(b"{}", 8_000_000)),
    "instances: lists in one": refused(
        "json", lambda: b'{"instances":[[%b]]}' % many(b"[]", 8_000_000)
    ),
    "inputs": refused("numbers", lambda: b'{"inputs":[%b]}' % many(ONE, 400_000)),
    "some inputs": refused("numbers", lambda: b'{"inputs":[%b]}' % many(ONE, 20_000)),
    "outputs": refused(
        "numbers", lambda: b'{"inputs":[%b],"outputs":[%b]}' % (ONE, many(b'{"name":"x"}', 100_000))
    ),
    "parameters": refused(
        "numbers", lambda: b'{"inputs":[%b],"parameters":{%b}}' % (ONE, numbered(100_000))
    ),
    "keys beside tensors": refused(
        "numbers", lambda: b'{"inputs":[%b],%b}' % (ONE, numbered(500_000))
    ),
    "a flat body of keys": refused("numbers", lambda: b"{%b}" % numbered(2_000_000)),
    "strings in JSON": refused(
        "texts", lambda: tensor("BYTES", many(b'""', 1_500_000), b"1,1500000")
    ),
    "binary strings": refused(
        "texts",
        lambda: STRINGS + bytes(26_000_000),
        f"{BINARY_TYPE};json-header-size={len(STRINGS)}",
    ),
    "npy: bytes": npy_row("texts", "|S1", (1, 25_000_000), 25_000_000),
    "npy: unicode": npy_row("texts", "<U1", (1, 6_000_000), 24_000_000),
    "npy: numbers for strings": npy_row("texts", "|u1", (1, 25_000_000), 25_000_000),
    "npy: no width": npy_row("texts", "|S0", (1, 30_000_000)),
    "npy: a trillion": npy_row("numbers", "<f4", (1, 10**12)),
    "npy: dimensions": npy_row("numbers", "<f4", (1,) * 2000, 4),
    "npy: negative": npy_row("numbers", "<f4", (-1, -1), 4),
    "npy: records": npy_row("numbers", [("a", "<f4")], (1, 1), 4),
    "npy: arrays in an array": npy_row("numbers", ("<f4", (2, 2)), (1, 1), 16),
    "npy: dates": npy_row("numbers", "<M8[s]", (1, 1), 8),
    "npy: brackets": refused(
        "numbers", lambda: b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 0x2000, NPY_TYPE
    ),
    "npz": refused("numbers", lambda: b"PK\x03\x04" + bytes(100), NPY_TYPE),
    "a shape of nines": refused("numbers", lambda: tensor("FP32", b"1", many(b"9", 12_000_000))),
    "data too deep": refused(
        "numbers", lambda: tensor("FP32", b"[" * 500 + b"]" * 500 + b"," + many(b"0", 10**5), b"1")
    ),
    "brackets": refused("numbers", lambda: b"[" * 300_000),
    "braces": refused("numbers", lambda: b'{"a":' * 300_000),
    "empty gzip members": refused("numbers", lambda: gzip.compress(b"") * 200_000, encoding="gzip"),
    "packed zeros": refused(
        "numbers", lambda: gzip.compress(bytes(20 * LARGEST), 1), encoding="gzip"
    ),
}
LINES = {
    "lines of objects for tensors": ("numbers", b"{}\n", PROCESSOR_SECONDS),
    # each line is a call of the model, for which gRPC's threads take as long as the request's own
    # thread
    "lines of numbers for a client": ("json", b"0\n", 2 * PROCESSOR_SECONDS),
    "empty lines": ("numbers", b"\n", PROCESSOR_SECONDS),
}
BODIES |= {
    name: Hostile(
        model,
        partial(mul, line, 2_000_000),
        (400, 413, 504),
        JSON_LINES,
        megabytes=200,
        seconds=seconds,
    )
    for name, (model, line, seconds) in LINES.items()
}
BODIES["a form of many parts"] = Hostile(
    "resnet",
    lambda: PART * 1001 + b"--x--\r\n",
    (413,),
    "multipart/form-data; boundary=x",
    is_packed=False,
)


def floats(count: int) -> bytes:
    return b'{"instances":[[%b0.5]]}' % (b"0.5," * count)


# Rows about memory. The comments say how much memory the front took above its idle memory before it
# was limited. These rows are sent with the default time limit, so that nothing ends them early.
# Slow readers, and uploads and streams that are kept open, are not in this table, because they need
# another kind of caller.
ROOM: dict[str, Hostile] = {
    # 1.7 GB; another caller's slowest call took 8 s
    "a picture of one column": Hostile(
        "resnet", lambda: png(0, 1, depth=8, side=1, height=89_000_000), (400,), "image/png"
    ),
    # 2.7 GB
    "a picture of one column with transparency": Hostile(
        "resnet", lambda: png(6, 4, depth=8, side=1, height=89_000_000), (400,), "image/png"
    ),
    # 2.5 GB
    "a picture of one column in 16-bit grey": Hostile(
        "resnet", lambda: png(0, 2, depth=16, side=1, height=89_000_000), (400,), "image/png"
    ),
    # 3.2 GB and 12 s; once a worker was killed
    "a drawing of a long picture": Hostile(
        "boxes",
        lambda: png(0, 500_000, depth=1, side=4_000_000, height=10),
        (400,),
        "image/png",
        headers={"Accept": "image/png"},
    ),
    # 500: the label's font is too large
    "a drawing of a longer picture": Hostile(
        "boxes",
        lambda: png(0, 1_000_000, depth=1, side=8_000_000, height=11),
        (400,),
        "image/png",
        headers={"Accept": "image/png"},
    ),
    # 2.6 GB for ten callers. On a busy machine, the last may wait for their turn until the time
    # limit.
    "floats of JSON from ten callers": Hostile(
        "json", lambda: floats(6_000_000), (400, 413, 503, 504), callers=10, seconds=PATIENT_SECONDS
    ),
    # 4.0 GB for twenty callers, or 503 for all of them, because each line takes a megabyte
    "lines of many objects": Hostile(
        "vectors",
        lambda: (b"[%b]\n" % many(b"{}", 5_000)) * 640,
        (200, 504),
        JSON_LINES,
        callers=20,
        seconds=6 * PATIENT_SECONDS,
    ),
    # 3.4 GB for 8 texts, 4.8 GB for 64 texts, because gRPC's threads receive 62 MB for each text
    "whole logits of 64 texts": Hostile(
        "masks", repeated("[MASK] " + text("a ", 1_000), 64), SLOW, seconds=2 * PATIENT_SECONDS
    ),
    # 1.4 GB
    "windows that share most of their tokens": Hostile(
        "entities", repeated("#" * 8_000, 32, stride=500), SLOW, seconds=PATIENT_SECONDS
    ),
    # 4.3 GB, because each request that waited for memory kept the images that had been answered
    "images that wait for memory": Hostile(
        "resnet",
        lambda: repeated({"b64": b64encode(png(2, 3 * 1_400, side=1_400)).decode()}, 96)(),
        (200, 503, 504),
        callers=20,
        seconds=6 * PATIENT_SECONDS,
    ),
    # 1.6 GB
    "numbers as CSV": Hostile(
        "numbers",
        lambda: npy(np.zeros((1, 15_000_000), np.uint8)),
        (200, 413),
        NPY_TYPE,
        headers={"Accept": CSV},
    ),
    # 1.9 GB
    "numbers as JSON for eight callers": Hostile(
        "numbers",
        lambda: npy(np.full((1, 12_500_000), 0.1, np.float16)),
        (200, 413, 503, 504),
        NPY_TYPE,
        callers=8,
        seconds=2 * PATIENT_SECONDS,
    ),
    # 1.8 GB
    "a form of one long text": Hostile(
        "opinions", lambda: b"text=" + b"%41" * 8_200_000, (413,), FORM
    ),
    # 0.8 to 1.2 GB
    "a form of long headers": Hostile(
        "resnet",
        lambda: b"--x\r\n" + b"X-A: b\r\n" * 3_000_000 + PART[5:],
        (413,),
        "multipart/form-data; boundary=x",
    ),
}
# Image files. Those that would be refused only by a lower limit of pixels are answered.
IMAGES = {
    name: Hostile("resnet", make, (200, 400), "image/png", megabytes=MEGABYTES_OF_A_BODY)
    for name, (make, _) in REFUSED.items()
}


def embeddings(text: str, count: int) -> Callable[[], bytes]:
    return lambda: json.dumps({"input": [text] * count}).encode()


def documents(text: str, count: int) -> Callable[[], bytes]:
    return lambda: json.dumps({"query": text, "documents": [text] * count}).encode()


def inputs(value: Any) -> Callable[[], bytes]:
    return lambda: json.dumps({"inputs": value}).encode()


def frame(columns: int, rows: int) -> bytes:
    names = b",".join(b'"%d"' % number for number in range(columns))
    row = b"[%b0]" % (b"0," * (columns - 1))
    data = b",".join([row] * rows)
    return b'{"dataframe_split":{"columns":[%b],"data":[%b]}}' % (names, data)


# rows for other servers' APIs, and for bodies that SDKs send
APIS: dict[str, Hostile] = {
    "token ids of 24 MB": Hostile(
        "vectors",
        lambda: b'{"input":[[%b1]]}' % (b"1," * 12_000_000),
        (400, 413),
        path="/v1/embeddings",
    ),
    "embeddings of more texts than the limit": Hostile(
        "vectors", embeddings("a", 1_000_000), (413,), path="/v1/embeddings"
    ),
    "embeddings of hash signs": Hostile(
        "vectors", embeddings("#" * 51_200, 480), SLOW, path="/v1/embeddings"
    ),
    "a ranking of more documents than the limit": Hostile(
        "ranking", documents("a", 1_000_000), (400,), path="/v1/rerank"
    ),
    "a ranking of documents of hash signs": Hostile(
        "ranking", documents("#" * 4_000, 1_000), SLOW, path="/rerank"
    ),
    "embeddings of hash signs for TEI": Hostile(
        "vectors", inputs(["#" * 51_200] * 480), SLOW, path="/embed"
    ),
    "classes of a million lists": Hostile(
        "opinions", inputs([["a"]] * 10**6), (413,), path="/predict"
    ),
    "similar sentences of hash signs": Hostile(
        "vectors",
        inputs({"source_sentence": "a", "sentences": ["#" * 51_200] * 480}),
        SLOW,
        path="/similarity",
    ),
    "a pipeline of a million texts": Hostile(
        "opinions", inputs(["a"] * 10**6), (413,), path="/pipeline"
    ),
    "numbers without keys": Hostile("numbers", lambda: b"[%b0]" % (b"0," * 12_000_000), SLOW),
    "lists without keys": Hostile("numbers", lambda: b"[%b[]]" % (b"[]," * 8_000_000), (413,)),
    "a million instances without keys": Hostile("json", lambda: b"[%b0]" % (b"0," * 10**6), (413,)),
    "a million instances for KServe v1": Hostile(
        "", lambda: b'{"instances":[%b0]}' % (b"0," * 10**6), (413,), path="/v1/models/json:predict"
    ),
    "an index of wide spaces": Hostile(
        "", lambda: b" " * 25_000_000, (413,), is_packed=False, path="/v2/repository/index"
    ),
    "a data frame of wide rows": Hostile("table", lambda: frame(100_000, 100), (400, 413)),
    "an index of 2^31": Hostile("table", lambda: b"1 2147483648:1\n", (400,), LIBSVM[0]),
    "a long row of LibSVM": Hostile("table", lambda: b"0:1 " * 6_000_000, (413,), LIBSVM[0]),
    "long rows of LibSVM": Hostile(
        "table", lambda: (b"0:1 " * 99_999 + b"\n") * 60, SLOW, LIBSVM[0]
    ),
    "a million rows of LibSVM": Hostile("table", lambda: b"0:1\n" * 10**6, (413,), LIBSVM[0]),
}
ROWS = {**BODIES, **TIME, **ROOM, **IMAGES, **APIS}


def named(name: str, statuses: tuple[int, ...] = (404,), **fields: Any) -> Hostile:
    """Return a row whose body names a model that may not be loaded yet."""
    return Hostile(
        "",
        lambda: json.dumps({"model_name": name, "inputs": [numbers([2.0])]}).encode(),
        statuses,
        megabytes=MEGABYTES_OF_A_BODY,
        **fields,
    )


# Rows for a server in on-demand mode. They are not in ROWS, because other servers serve no models
# on demand.
UNPACKED_MEGABYTES = 50  # the server's limit for all unpacked archives
BOMB = 20 * UNPACKED_MEGABYTES  # megabytes of the unpacked archive `bomb`
ON_DEMAND: dict[str, Hostile] = {
    "a name of 24 MB": named("n" * 24_000_000),
    "a name that is too long for a file": named("n" * 256),
    "a name of a million folders": named("n/" * 1_000_000 + "n"),
    "a name outside of the repository": named("../" * 10 + "etc"),
    "a name with .. in the middle": named("resnet/../../models/resnet"),
    "an encoded path outside of the repository": Hostile(
        "", lambda: b"{}", (400,), path="/models/..%2F..%2Fetc/invoke"
    ),
    "a name with odd characters": named("$(touch x)\0\n\r\u202e%2e%2e\\"),
    "a name with half a character": named("\ud800", (400,)),
    # more names than the manager remembers
    "5,000 names that do not exist": Hostile(
        "absent", lambda: b"{}", (404, 503), callers=8, seconds=10 * PATIENT_SECONDS, names=5_000
    ),
    "an archive that becomes too large": named("bomb", (503,), callers=40),
}
