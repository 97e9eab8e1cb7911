"""Rows 1 to 5 of CONTRACT section 3 on `scale`, a model of one FP32 input x whose output y is three
times x."""

from collections.abc import Callable

from tests.conformance.behaviours import (
    ATTRIBUTES,
    BINARY,
    COME_BACK,
    Ask,
    binary,
    get,
    post,
    rows,
    shown,
    tensor,
)
from tests.conformance.probes import (
    FLOAT,
    ONE,
    X,
    and_then,
    bomb,
    chunked_binary,
    chunked_json,
    closing,
    compressed,
    compressed_binary,
    echo_of,
    error_fields,
    error_type,
    expecting,
    framing,
    http_1_0,
    large,
    pipelined,
    status,
)
from tests.conformance.wire import Answer, Headers

ROUTES = "404, and an error that names the routes"
PROBES = "a health check may use POST (SageMaker's contract) and HEAD"
DEADLY = "400, as the body cannot hold it; native dies of it"
STRICT = "400, as it is no number; native takes the digits in front, or 0 when there are none"
MISTAKE = "400, as the caller can mend it; native says 500"
TOLERANT = "understood as RFC 9110 writes it, in any case and with spaces"
EMPTY = "400 with the shapes that a body may have; native runs the model on nothing"
SCRAPED = "Prometheus text for SageMaker's scraper; native has no such route"
ASKED = "what a batch transform job asks for; native has no such route"
SHORTEST = "the shortest number that reads back as the same FP32"
ONE_MODEL = "one request, one model: a name that is not served is 404; native passes it over"
LOGGED = "it is the id of the reply and of the log's lines; native loses it"
PRIVATE = "400: a caller shares no memory with a container"
LARGEST = (
    "SageMaker's limit, 25 MB; SERVE_MAX_BODY_MB raises it for asynchronous calls, native has none"
)
FIELDS = "a code to branch on and the request's id stand beside the text"
IN_JSON = "it is JSON, and says so"
UNKNOWN = "415, as it cannot be unpacked; native passes it over"
STREAMED = "a stream, as asked for; native has none here"
NPY_REPLY = "an npy file, as asked for; native has none"
ENCODINGS = "unpacked, up to the limit of a body; native takes the packed bytes for JSON"

B = tensor("x", "FP32", [1, 1], binary_data_size=4)
Y = {"name": "y", "parameters": {"binary_data": True}}
FOUR = {"inputs": [B]}
SIZE = f"{BINARY};json-header-size="
BOTH = {"inputs": [B], "outputs": [Y]}
SMALL = tensor("x", "FP32", [1, 1], [1])
SHARED = tensor("x", "FP32", [1, 1], shared_memory_region="a", shared_memory_byte_size=4)
LEADING = b"\r\n  " + b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'


def sized(size: int, shape: list[int], *data: object) -> dict[str, object]:
    """Return a request with an input that claims to have this many bytes."""
    return {"inputs": [tensor("x", "FP32", shape, *data, binary_data_size=size)]}


def wrong(see: Callable[[Answer], str] = shown, **changes: object) -> Ask:
    """Return an invocation in which fields of the input are replaced with these."""
    return post({"inputs": [{**X, **changes}]}, see=see)


def kind(content_type: str) -> Headers:
    return {"Content-Type": content_type}


PING = rows(
    "1",
    ("GET /ping", get("/ping")),
    ("GET /ping with a query string", get("/ping?x=1")),
    ("POST /ping", get("/ping", "POST"), PROBES),
    ("HEAD /ping", get("/ping", "HEAD"), PROBES),
    *(
        (f"{method} /ping", get("/ping", method))
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH")
    ),
    *((f"GET {path}", get(path), ROUTES) for path in ("/", "/nothing")),
    ("POST /nothing", get("/nothing", "POST"), ROUTES),
    ("GET /ping/", get("/ping/"), ROUTES),
    *((f"POST {path}", get(path, "POST"), ROUTES) for path in ("/invocations/", "/invocation")),
    ("GET /v2/health/ready", get("/v2/health/ready"), ROUTES),
    ("POST /v2/repository/index", get("/v2/repository/index", "POST"), ROUTES),
    *(
        (f"{method} /invocations", get("/invocations", method))
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
    ),
    ("GET /metrics", get("/metrics", see=status), SCRAPED),
    ("GET /execution-parameters", get("/execution-parameters", see=status), ASKED),
)

KINDS = (
    *("application/json", "application/json; charset=utf-8", "application/octet-stream"),
    *("application/x-www-form-urlencoded", "text/plain", "text/csv", "image/jpeg", ""),
)
JSON = rows(
    "2",
    *(
        (
            f"KServe JSON as {kind or 'nothing (an empty Content-Type)'}",
            post(ONE, {"Content-Type": kind}),
        )
        for kind in KINDS
    ),
    ("The headers that frame a reply", post(ONE, see=framing)),
    ("An id comes back", post({"id": "my id", **ONE})),
    ("Unknown fields are passed over", post({"mine": [1], **ONE})),
    (
        "Parameters of the request",
        post({**ONE, "parameters": {"mine": 1, "flag": True, "text": "t"}}),
    ),
    ("Nested data", post({"inputs": [tensor("x", "FP32", [2, 2], [[1, 2], [3, 4]])]})),
    ("A batch", post({"inputs": [tensor("x", "FP32", [3, 1], [1, 2, 3])]})),
    ("No elements", post({"inputs": [tensor("x", "FP32", [1, 0], [])]})),
    ("The outputs that are asked for", post({**ONE, "outputs": [{"name": "y"}]})),
    ("An empty list of outputs", post({**ONE, "outputs": []})),
    (
        "Classification",
        post({**ONE, "outputs": [{"name": "y", "parameters": {"classification": 2}}]}),
    ),
    (
        "Numbers that float32 has not, and large ones",
        post({"inputs": [tensor("x", "FP32", [1, 4], [0.1, 1e-40, 3e37, -0.0])]}),
        SHORTEST,
    ),
    ("Spaces and line ends before the JSON", post(LEADING)),
    (
        "A model's name in the body is not the default model's",
        post({**ONE, "model_name": "another"}),
        ONE_MODEL,
    ),
    ("Custom-Attributes", post(ONE, {ATTRIBUTES: "trace=7"}, echo_of(ATTRIBUTES)), COME_BACK),
    (
        "Inference-Id",
        post(ONE, {"X-Amzn-SageMaker-Inference-Id": "call-7"}, echo_of("X-Request-Id")),
        LOGGED,
    ),
    (
        "The version that answered",
        post(ONE, see=echo_of("X-Model-Version")),
        "it stands in a header too",
    ),
    ("10 MB of JSON", large(5, as_binary=False)),
)

BINARIES = rows(
    "3",
    ("Binary in, binary out", binary(BOTH, FLOAT)),
    ("Binary in, JSON out", binary(FOUR, FLOAT)),
    ("JSON in, binary out", post({**ONE, "outputs": [Y]})),
    (
        "JSON in, all outputs binary by a parameter",
        post({**ONE, "parameters": {"binary_data_output": True}}),
    ),
    ("JSON in a binary type", binary({"inputs": [SMALL]}, b"")),
    ("A parameter after the length", binary(FOUR, FLOAT, f"{SIZE}LENGTH;charset=utf-8")),
    ("N=0 is raw input", post(FLOAT, kind(f"{SIZE}0"))),
    ("N=0 of two rows' bytes", post(FLOAT * 3, kind(f"{SIZE}0"))),
    ("N=0 with a broken number of bytes", and_then(post(FLOAT + b"\0", kind(f"{SIZE}0")))),
    ("The type behind another", and_then(binary(FOUR, FLOAT, f"x/y; {SIZE}LENGTH"))),
    ("The type behind another, of a JSON body", and_then(post(ONE, kind(f"x/y; {SIZE}10")))),
    *(
        (f"N={number or 'nothing'}", and_then(binary(BOTH, FLOAT, f"{SIZE}{number}")), reason)
        for number, reason in (
            *((number, "") for number in ("-1", "9999", "2147483648", "99999999999999999999")),
            *(("abc", STRICT), ("", STRICT), ("1.5", MISTAKE), ("0x10", STRICT)),
            *(("LENGTHabc", STRICT), ("+LENGTH", STRICT), ("10", MISTAKE)),
        )
    ),
    ("The type without N", binary(FOUR, FLOAT, BINARY)),
    (
        "A space before the parameter",
        binary(FOUR, FLOAT, f"{BINARY}; json-header-size=LENGTH"),
        TOLERANT,
    ),
    (
        "The type in capitals",
        binary(FOUR, FLOAT, f"{BINARY.upper()};json-header-size=LENGTH"),
        TOLERANT,
    ),
    ("N in quotes", binary(FOUR, FLOAT, f'{SIZE}"LENGTH"'), TOLERANT),
    ("Fewer bytes than binary_data_size", and_then(binary(FOUR, FLOAT[:2]))),
    ("More bytes than binary_data_size", and_then(binary(FOUR, FLOAT * 2))),
    ("binary_data_size that is not the shape's", and_then(binary(sized(4, [1, 2]), FLOAT))),
    ("A negative binary_data_size", and_then(binary(sized(-4, [1, 1]), FLOAT)), MISTAKE),
    ("Binary and data for one input", and_then(binary(sized(4, [1, 1], [1]), FLOAT))),
    ("Shared memory that nobody registered", post({"inputs": [SHARED]}), PRIVATE),
    ("20 MB of binary", large(20, as_binary=True)),
    ("30 MB of binary", large(30, as_binary=True), LARGEST),
)

ERRORS = rows(
    "5",
    ("The fields of an error", wrong(name="q", see=error_fields), FIELDS),
    ("The Content-Type of an error", wrong(name="q", see=error_type)),
    ("The Content-Type of a wrong N's error", post(ONE, kind(f"{SIZE}-1"), error_type), IN_JSON),
    ("The Content-Type of a 405", post(ONE, see=error_type, method="PUT"), IN_JSON),
    ("An unknown input", wrong(name="q")),
    ("A wrong datatype", wrong(datatype="INT32", data=[1, 2])),
    ("A datatype that there is not", wrong(datatype="FP99")),
    ("A wrong number of dimensions", wrong(shape=[2])),
    ("More rows than max_batch_size", wrong(shape=[9, 1], data=[1] * 9)),
    ("An input that is missing", post({"inputs": []})),
    ("An input twice", post({"inputs": [X, X]})),
    ("An unknown output", post({**ONE, "outputs": [{"name": "q"}]})),
    ("Data and shape that differ", wrong(shape=[1, 3]), MISTAKE),
    ("A negative dimension", wrong(shape=[1, -2]), MISTAKE),
    ("A shape larger than memory", and_then(wrong(shape=[1, 1 << 40])), DEADLY),
    ("A shape that overflows", and_then(wrong(shape=[4, 1 << 62])), DEADLY),
    ("Strings for numbers", wrong(data=["a", "b"]), MISTAKE),
    ("Null for numbers", wrong(data=None), MISTAKE),
    ("inputs that is no list", post({"inputs": {}}), MISTAKE),
    ("An id that is no string", post({**ONE, "id": 7}), MISTAKE),
    ("No inputs at all", post({}), MISTAKE),
    ("A list instead of an object", post([]), MISTAKE),
    ("No JSON", post("hello"), MISTAKE),
    ("JSON that ends too early", post('{"inputs": ['), MISTAKE),
    ("JSON nested 100,000 deep", and_then(post("[" * 100_000)), MISTAKE),
    ("An empty body", post(""), EMPTY),
)

CONNECTIONS = [
    *rows("2", ("Transfer-Encoding: chunked", chunked_json)),
    *rows("3", ("Transfer-Encoding: chunked of a binary body", chunked_binary)),
    *rows(
        "2",
        ("Expect: 100-continue", expecting),
        ("Three requests pipelined on one connection", pipelined, "each is answered, in order"),
        (
            "Connection: close, and a request after it",
            closing,
            "the connection is closed, as RFC 9112 says",
        ),
        ("HTTP/1.0", http_1_0),
        ("Content-Encoding: gzip", compressed("gzip"), ENCODINGS),
        ("Content-Encoding: deflate", compressed("deflate"), ENCODINGS),
    ),
    *rows("3", ("Content-Encoding: gzip of a binary body", compressed_binary, ENCODINGS)),
    *rows(
        "2",
        ("Content-Encoding: identity", compressed("identity")),
        ("Content-Encoding: br", compressed("br"), UNKNOWN),
        (
            "40 kB that unpack to 40 MB",
            and_then(bomb),
            "413: the limit of a body is that of what it unpacks to",
        ),
        ("Accept-Encoding: gzip", post(ONE, {"Accept-Encoding": "gzip"}, framing)),
        *(
            (f"Accept: {kind}", post(ONE, {"Accept": kind}))
            for kind in ("*/*", "text/html", "image/jpeg", "application/json;q=0")
        ),
        (
            "Accept: application/x-npy",
            post(ONE, {"Accept": "application/x-npy"}, error_type),
            NPY_REPLY,
        ),
        *(
            (f"Accept: {kind}", post(ONE, {"Accept": kind}), STREAMED)
            for kind in ("text/event-stream", "application/jsonlines")
        ),
    ),
]

ROWS = [*PING, *JSON, *BINARIES, *ERRORS, *CONNECTIONS]
