"""CONTRACT section 3, rows 1 to 5, on `scale`: a model of one FP32 input x, whose output y is three times x."""

from collections.abc import Callable

from tests.conformance.behaviours import BINARY, Ask, Row, binary, get, post, shown, tensor
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
ENCODINGS = "unpacked, up to the limit of a body; native takes the packed bytes for JSON"

B = tensor("x", "FP32", [1, 1], binary_data_size=4)
Y = {"name": "y", "parameters": {"binary_data": True}}
FOUR = {"inputs": [B]}
SIZE = f"{BINARY};json-header-size="
BOTH = {"inputs": [B], "outputs": [Y]}
SMALL = tensor("x", "FP32", [1, 1], [1])


def wrong(see: Callable[[Answer], str] = shown, **changes: object) -> Ask:
    """An invocation with something else in its input."""
    return post({"inputs": [{**X, **changes}]}, see=see)


def kind(content_type: str) -> Headers:
    return {"Content-Type": content_type}


PING = [
    Row("1", "GET /ping", get("/ping")),
    Row("1", "GET /ping with a query string", get("/ping?x=1")),
    Row("1", "POST /ping", get("/ping", "POST"), PROBES),
    Row("1", "HEAD /ping", get("/ping", "HEAD"), PROBES),
    *(Row("1", f"{method} /ping", get("/ping", method)) for method in ("PUT", "DELETE", "OPTIONS", "PATCH")),
    *(
        Row("1", f"{method} {path}", get(path, method), ROUTES)
        for method, path in (
            ("GET", "/"),
            ("GET", "/nothing"),
            ("POST", "/nothing"),
            ("GET", "/ping/"),
            ("POST", "/invocations/"),
            ("POST", "/invocation"),
            ("GET", "/v2/health/ready"),
            ("POST", "/v2/repository/index"),
        )
    ),
    *(
        Row("1", f"{method} /invocations", get("/invocations", method))
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
    ),
    *(
        Row("1", f"GET {path}", get(path, see=status), f"{what}; native has no such route")
        for path, what in (
            ("/metrics", "Prometheus text for SageMaker's scraper"),
            ("/execution-parameters", "what a batch transform job asks for"),
        )
    ),
]

JSON = [
    *(
        Row("2", f"KServe JSON as {kind or 'nothing (an empty Content-Type)'}", post(ONE, {"Content-Type": kind}))
        for kind in (
            "application/json",
            "application/json; charset=utf-8",
            "application/octet-stream",
            "application/x-www-form-urlencoded",
            "text/plain",
            "text/csv",
            "image/jpeg",
            "",
        )
    ),
    Row("2", "The headers that frame a reply", post(ONE, see=framing)),
    Row("2", "An id comes back", post({"id": "my id", **ONE})),
    Row("2", "Unknown fields are passed over", post({"mine": [1], **ONE})),
    Row("2", "Parameters of the request", post({**ONE, "parameters": {"mine": 1, "flag": True, "text": "t"}})),
    Row("2", "Nested data", post({"inputs": [tensor("x", "FP32", [2, 2], [[1, 2], [3, 4]])]})),
    Row("2", "A batch", post({"inputs": [tensor("x", "FP32", [3, 1], [1, 2, 3])]})),
    Row("2", "No elements", post({"inputs": [tensor("x", "FP32", [1, 0], [])]})),
    Row("2", "The outputs that are asked for", post({**ONE, "outputs": [{"name": "y"}]})),
    Row("2", "An empty list of outputs", post({**ONE, "outputs": []})),
    Row("2", "Classification", post({**ONE, "outputs": [{"name": "y", "parameters": {"classification": 2}}]})),
    Row(
        "2",
        "Numbers that float32 has not, and large ones",
        post({"inputs": [tensor("x", "FP32", [1, 4], [0.1, 1e-40, 3e37, -0.0])]}),
        "the shortest number that reads back as the same FP32",
    ),
    Row(
        "2",
        "Spaces and line ends before the JSON",
        post(b"\r\n  " + b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'),
    ),
    Row(
        "2",
        "A model's name in the body is not the default model's",
        post({**ONE, "model_name": "another"}),
        "one request, one model: a name that is not served is 404; native passes it over",
    ),
    Row(
        "2",
        "Custom-Attributes",
        post(ONE, {"X-Amzn-SageMaker-Custom-Attributes": "trace=7"}, echo_of("X-Amzn-SageMaker-Custom-Attributes")),
        "they come back, as SageMaker asks of a container; native loses them",
    ),
    Row(
        "2",
        "Inference-Id",
        post(ONE, {"X-Amzn-SageMaker-Inference-Id": "call-7"}, echo_of("X-Request-Id")),
        "it is the id of the reply and of the log's lines; native loses it",
    ),
    Row("2", "The version that answered", post(ONE, see=echo_of("X-Model-Version")), "it stands in a header too"),
    Row("2", "10 MB of JSON", large(5, as_binary=False)),
]

BINARIES = [
    Row("3", "Binary in, binary out", binary(BOTH, FLOAT)),
    Row("3", "Binary in, JSON out", binary(FOUR, FLOAT)),
    Row("3", "JSON in, binary out", post({**ONE, "outputs": [Y]})),
    Row("3", "JSON in, all outputs binary by a parameter", post({**ONE, "parameters": {"binary_data_output": True}})),
    Row("3", "JSON in a binary type", binary({"inputs": [SMALL]}, b"")),
    Row("3", "A parameter after the length", binary(FOUR, FLOAT, f"{SIZE}LENGTH;charset=utf-8")),
    Row("3", "N=0 is raw input", post(FLOAT, kind(f"{SIZE}0"))),
    Row("3", "N=0 of two rows' bytes", post(FLOAT * 3, kind(f"{SIZE}0"))),
    Row("3", "N=0 with a broken number of bytes", and_then(post(FLOAT + b"\0", kind(f"{SIZE}0")))),
    Row("3", "The type behind another", and_then(binary(FOUR, FLOAT, f"x/y; {SIZE}LENGTH"))),
    Row("3", "The type behind another, of a JSON body", and_then(post(ONE, kind(f"x/y; {SIZE}10")))),
    *(
        Row("3", f"N={number or 'nothing'}", and_then(binary(BOTH, FLOAT, f"{SIZE}{number}")), reason)
        for number, reason in (
            ("-1", ""),
            ("9999", ""),
            ("2147483648", ""),
            ("99999999999999999999", ""),
            ("abc", STRICT),
            ("", STRICT),
            ("1.5", MISTAKE),
            ("0x10", STRICT),
            ("LENGTHabc", STRICT),
            ("+LENGTH", STRICT),
            ("10", MISTAKE),
        )
    ),
    Row("3", "The type without N", binary(FOUR, FLOAT, BINARY)),
    Row("3", "A space before the parameter", binary(FOUR, FLOAT, f"{BINARY}; json-header-size=LENGTH"), TOLERANT),
    Row("3", "The type in capitals", binary(FOUR, FLOAT, f"{BINARY.upper()};json-header-size=LENGTH"), TOLERANT),
    Row("3", "N in quotes", binary(FOUR, FLOAT, f'{SIZE}"LENGTH"'), TOLERANT),
    Row("3", "Fewer bytes than binary_data_size", and_then(binary(FOUR, FLOAT[:2]))),
    Row("3", "More bytes than binary_data_size", and_then(binary(FOUR, FLOAT * 2))),
    Row(
        "3",
        "binary_data_size that is not the shape's",
        and_then(binary({"inputs": [tensor("x", "FP32", [1, 2], binary_data_size=4)]}, FLOAT)),
    ),
    Row(
        "3",
        "A negative binary_data_size",
        and_then(binary({"inputs": [tensor("x", "FP32", [1, 1], binary_data_size=-4)]}, FLOAT)),
        MISTAKE,
    ),
    Row(
        "3",
        "Binary and data for one input",
        and_then(binary({"inputs": [tensor("x", "FP32", [1, 1], [1], binary_data_size=4)]}, FLOAT)),
    ),
    Row(
        "3",
        "Shared memory that nobody registered",
        post({"inputs": [tensor("x", "FP32", [1, 1], shared_memory_region="a", shared_memory_byte_size=4)]}),
        "400: a caller shares no memory with a container",
    ),
    Row("3", "20 MB of binary", large(20, as_binary=True)),
    Row(
        "3",
        "30 MB of binary",
        large(30, as_binary=True),
        "SageMaker's limit, 25 MB; SERVE_MAX_BODY_MB raises it for asynchronous calls, native has none",
    ),
]

ERRORS = [
    Row(
        "5",
        "The fields of an error",
        wrong(name="q", see=error_fields),
        "a code to branch on and the request's id stand beside the text",
    ),
    Row("5", "The Content-Type of an error", wrong(name="q", see=error_type)),
    Row(
        "5",
        "The Content-Type of a wrong N's error",
        post(ONE, kind(f"{SIZE}-1"), error_type),
        "it is JSON, and says so",
    ),
    Row("5", "The Content-Type of a 405", post(ONE, see=error_type, method="PUT"), "it is JSON, and says so"),
    Row("5", "An unknown input", wrong(name="q")),
    Row("5", "A wrong datatype", wrong(datatype="INT32", data=[1, 2])),
    Row("5", "A datatype that there is not", wrong(datatype="FP99")),
    Row("5", "A wrong number of dimensions", wrong(shape=[2])),
    Row("5", "More rows than max_batch_size", wrong(shape=[9, 1], data=[1] * 9)),
    Row("5", "An input that is missing", post({"inputs": []})),
    Row("5", "An input twice", post({"inputs": [X, X]})),
    Row("5", "An unknown output", post({**ONE, "outputs": [{"name": "q"}]})),
    Row("5", "Data and shape that differ", wrong(shape=[1, 3]), MISTAKE),
    Row("5", "A negative dimension", wrong(shape=[1, -2]), MISTAKE),
    Row("5", "A shape larger than memory", and_then(wrong(shape=[1, 1 << 40])), DEADLY),
    Row("5", "A shape that overflows", and_then(wrong(shape=[4, 1 << 62])), DEADLY),
    Row("5", "Strings for numbers", wrong(data=["a", "b"]), MISTAKE),
    Row("5", "Null for numbers", wrong(data=None), MISTAKE),
    Row("5", "inputs that is no list", post({"inputs": {}}), MISTAKE),
    Row("5", "An id that is no string", post({**ONE, "id": 7}), MISTAKE),
    Row("5", "No inputs at all", post({}), MISTAKE),
    Row("5", "A list instead of an object", post([]), MISTAKE),
    Row("5", "No JSON", post("hello"), MISTAKE),
    Row("5", "JSON that ends too early", post('{"inputs": ['), MISTAKE),
    Row("5", "JSON nested 100,000 deep", and_then(post("[" * 100_000)), MISTAKE),
    Row("5", "An empty body", post(""), EMPTY),
]

CONNECTIONS = [
    Row("2", "Transfer-Encoding: chunked", chunked_json),
    Row("3", "Transfer-Encoding: chunked of a binary body", chunked_binary),
    Row("2", "Expect: 100-continue", expecting),
    Row("2", "Three requests pipelined on one connection", pipelined, "each is answered, in order"),
    Row("2", "Connection: close, and a request after it", closing, "the connection is closed, as RFC 9112 says"),
    Row("2", "HTTP/1.0", http_1_0),
    Row("2", "Content-Encoding: gzip", compressed("gzip"), ENCODINGS),
    Row("2", "Content-Encoding: deflate", compressed("deflate"), ENCODINGS),
    Row("3", "Content-Encoding: gzip of a binary body", compressed_binary, ENCODINGS),
    Row("2", "Content-Encoding: identity", compressed("identity")),
    Row("2", "Content-Encoding: br", compressed("br"), "415, as it cannot be unpacked; native passes it over"),
    Row("2", "40 kB that unpack to 40 MB", and_then(bomb), "413: the limit of a body is that of what it unpacks to"),
    Row("2", "Accept-Encoding: gzip", post(ONE, {"Accept-Encoding": "gzip"}, framing)),
    *(
        Row("2", f"Accept: {kind}", post(ONE, {"Accept": kind}))
        for kind in ("*/*", "text/html", "image/jpeg", "application/x-npy", "application/json;q=0")
    ),
    *(
        Row("2", f"Accept: {kind}", post(ONE, {"Accept": kind}), "a stream, as asked for; native has none here")
        for kind in ("text/event-stream", "application/jsonlines")
    ),
]

ROWS = [*PING, *JSON, *BINARIES, *ERRORS, *CONNECTIONS]
