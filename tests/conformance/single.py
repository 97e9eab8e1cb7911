"""CONTRACT section 3, rows 1 to 5, on `scale`: a model of one FP32 input x, whose output y is three times x."""

from collections.abc import Callable

from tests.conformance.behaviours import BINARY, Ask, Behaviour, binary, get, post, shown, tensor
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
from tests.conformance.wire import Answer

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
BOTH = {"inputs": [B], "outputs": [Y]}
SMALL = tensor("x", "FP32", [1, 1], [1])


def wrong(see: Callable[[Answer], str] = shown, **changes: object) -> Ask:
    """An invocation with something else in its input."""
    return post({"inputs": [{**X, **changes}]}, see=see)


PING = [
    Behaviour("1", "GET /ping", get("/ping")),
    Behaviour("1", "GET /ping with a query string", get("/ping?x=1")),
    Behaviour("1", "POST /ping", get("/ping", "POST"), PROBES),
    Behaviour("1", "HEAD /ping", get("/ping", "HEAD"), PROBES),
    *(Behaviour("1", f"{method} /ping", get("/ping", method)) for method in ("PUT", "DELETE", "OPTIONS", "PATCH")),
    *(
        Behaviour("1", f"{method} {path}", get(path, method), ROUTES)
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
        Behaviour("1", f"{method} /invocations", get("/invocations", method))
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
    ),
    *(
        Behaviour("1", f"GET {path}", get(path, see=status), f"{what}; native has no such route")
        for path, what in (
            ("/metrics", "Prometheus text for SageMaker's scraper"),
            ("/execution-parameters", "what a batch transform job asks for"),
        )
    ),
]

JSON = [
    *(
        Behaviour("2", f"KServe JSON as {kind or 'nothing (an empty Content-Type)'}", post(ONE, {"Content-Type": kind}))
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
    Behaviour("2", "The headers that frame a reply", post(ONE, see=framing)),
    Behaviour("2", "An id comes back", post({"id": "my id", **ONE})),
    Behaviour("2", "Unknown fields are passed over", post({"mine": [1], **ONE})),
    Behaviour("2", "Parameters of the request", post({**ONE, "parameters": {"mine": 1, "flag": True, "text": "t"}})),
    Behaviour("2", "Nested data", post({"inputs": [tensor("x", "FP32", [2, 2], [[1, 2], [3, 4]])]})),
    Behaviour("2", "A batch", post({"inputs": [tensor("x", "FP32", [3, 1], [1, 2, 3])]})),
    Behaviour("2", "No elements", post({"inputs": [tensor("x", "FP32", [1, 0], [])]})),
    Behaviour("2", "The outputs that are asked for", post({**ONE, "outputs": [{"name": "y"}]})),
    Behaviour("2", "An empty list of outputs", post({**ONE, "outputs": []})),
    Behaviour("2", "Classification", post({**ONE, "outputs": [{"name": "y", "parameters": {"classification": 2}}]})),
    Behaviour(
        "2",
        "Numbers that float32 has not, and large ones",
        post({"inputs": [tensor("x", "FP32", [1, 4], [0.1, 1e-40, 3e37, -0.0])]}),
        "the shortest number that reads back as the same FP32",
    ),
    Behaviour(
        "2",
        "Spaces and line ends before the JSON",
        post(b"\r\n  " + b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'),
    ),
    Behaviour(
        "2",
        "A model's name in the body is not the default model's",
        post({**ONE, "model_name": "another"}),
        "one request, one model: a name that is not served is 404; native passes it over",
    ),
    Behaviour(
        "2",
        "Custom-Attributes",
        post(ONE, {"X-Amzn-SageMaker-Custom-Attributes": "trace=7"}, echo_of("X-Amzn-SageMaker-Custom-Attributes")),
        "they come back, as SageMaker asks of a container; native loses them",
    ),
    Behaviour(
        "2",
        "Inference-Id",
        post(ONE, {"X-Amzn-SageMaker-Inference-Id": "call-7"}, echo_of("X-Request-Id")),
        "it is the id of the reply and of the log's lines; native loses it",
    ),
    Behaviour("2", "The version that answered", post(ONE, see=echo_of("X-Model-Version")), "it stands in a header too"),
    Behaviour("2", "10 MB of JSON", large(5, as_binary=False)),
]

BINARIES = [
    Behaviour("3", "Binary in, binary out", binary(BOTH, FLOAT)),
    Behaviour("3", "Binary in, JSON out", binary({"inputs": [B]}, FLOAT)),
    Behaviour("3", "JSON in, binary out", post({**ONE, "outputs": [Y]})),
    Behaviour(
        "3", "JSON in, all outputs binary by a parameter", post({**ONE, "parameters": {"binary_data_output": True}})
    ),
    Behaviour("3", "JSON in a binary type", binary({"inputs": [SMALL]}, b"")),
    Behaviour(
        "3",
        "A parameter after the length",
        binary({"inputs": [B]}, FLOAT, f"{BINARY};json-header-size=LENGTH;charset=utf-8"),
    ),
    Behaviour("3", "N=0 is raw input", post(FLOAT, {"Content-Type": f"{BINARY};json-header-size=0"})),
    Behaviour("3", "N=0 of two rows' bytes", post(FLOAT * 3, {"Content-Type": f"{BINARY};json-header-size=0"})),
    Behaviour(
        "3",
        "N=0 with a broken number of bytes",
        and_then(post(FLOAT + b"\0", {"Content-Type": f"{BINARY};json-header-size=0"})),
    ),
    Behaviour(
        "3",
        "The type behind another",
        and_then(binary({"inputs": [B]}, FLOAT, f"x/y; {BINARY};json-header-size=LENGTH")),
    ),
    Behaviour(
        "3",
        "The type behind another, of a JSON body",
        and_then(post(ONE, {"Content-Type": f"x/y; {BINARY};json-header-size=10"})),
    ),
    *(
        Behaviour(
            "3",
            f"N={number or 'nothing'}",
            and_then(binary(BOTH, FLOAT, f"{BINARY};json-header-size={number}")),
            reason,
        )
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
    Behaviour("3", "The type without N", binary({"inputs": [B]}, FLOAT, BINARY)),
    Behaviour(
        "3",
        "A space before the parameter",
        binary({"inputs": [B]}, FLOAT, f"{BINARY}; json-header-size=LENGTH"),
        TOLERANT,
    ),
    Behaviour(
        "3",
        "The type in capitals",
        binary({"inputs": [B]}, FLOAT, f"{BINARY.upper()};json-header-size=LENGTH"),
        TOLERANT,
    ),
    Behaviour("3", "N in quotes", binary({"inputs": [B]}, FLOAT, f'{BINARY};json-header-size="LENGTH"'), TOLERANT),
    Behaviour("3", "Fewer bytes than binary_data_size", and_then(binary({"inputs": [B]}, FLOAT[:2]))),
    Behaviour("3", "More bytes than binary_data_size", and_then(binary({"inputs": [B]}, FLOAT * 2))),
    Behaviour(
        "3",
        "binary_data_size that is not the shape's",
        and_then(binary({"inputs": [tensor("x", "FP32", [1, 2], binary_data_size=4)]}, FLOAT)),
    ),
    Behaviour(
        "3",
        "A negative binary_data_size",
        and_then(binary({"inputs": [tensor("x", "FP32", [1, 1], binary_data_size=-4)]}, FLOAT)),
        MISTAKE,
    ),
    Behaviour(
        "3",
        "Binary and data for one input",
        and_then(binary({"inputs": [tensor("x", "FP32", [1, 1], [1], binary_data_size=4)]}, FLOAT)),
    ),
    Behaviour(
        "3",
        "Shared memory that nobody registered",
        post({"inputs": [tensor("x", "FP32", [1, 1], shared_memory_region="a", shared_memory_byte_size=4)]}),
        "400: a caller shares no memory with a container",
    ),
    Behaviour("3", "20 MB of binary", large(20, as_binary=True)),
    Behaviour(
        "3",
        "30 MB of binary",
        large(30, as_binary=True),
        "SageMaker's limit, 25 MB; SERVE_MAX_BODY_MB raises it for asynchronous calls, native has none",
    ),
]

ERRORS = [
    Behaviour(
        "5",
        "The fields of an error",
        wrong(name="q", see=error_fields),
        "a code to branch on and the request's id stand beside the text",
    ),
    Behaviour("5", "The Content-Type of an error", wrong(name="q", see=error_type)),
    Behaviour(
        "5",
        "The Content-Type of a wrong N's error",
        post(ONE, {"Content-Type": f"{BINARY};json-header-size=-1"}, error_type),
        "it is JSON, and says so",
    ),
    Behaviour("5", "The Content-Type of a 405", post(ONE, see=error_type, method="PUT"), "it is JSON, and says so"),
    Behaviour("5", "An unknown input", wrong(name="q")),
    Behaviour("5", "A wrong datatype", wrong(datatype="INT32", data=[1, 2])),
    Behaviour("5", "A datatype that there is not", wrong(datatype="FP99")),
    Behaviour("5", "A wrong number of dimensions", wrong(shape=[2])),
    Behaviour("5", "More rows than max_batch_size", wrong(shape=[9, 1], data=[1] * 9)),
    Behaviour("5", "An input that is missing", post({"inputs": []})),
    Behaviour("5", "An input twice", post({"inputs": [X, X]})),
    Behaviour("5", "An unknown output", post({**ONE, "outputs": [{"name": "q"}]})),
    Behaviour("5", "Data and shape that differ", wrong(shape=[1, 3]), MISTAKE),
    Behaviour("5", "A negative dimension", wrong(shape=[1, -2]), MISTAKE),
    Behaviour("5", "A shape larger than memory", and_then(wrong(shape=[1, 1 << 40])), DEADLY),
    Behaviour("5", "A shape that overflows", and_then(wrong(shape=[4, 1 << 62])), DEADLY),
    Behaviour("5", "Strings for numbers", wrong(data=["a", "b"]), MISTAKE),
    Behaviour("5", "Null for numbers", wrong(data=None), MISTAKE),
    Behaviour("5", "inputs that is no list", post({"inputs": {}}), MISTAKE),
    Behaviour("5", "An id that is no string", post({**ONE, "id": 7}), MISTAKE),
    Behaviour("5", "No inputs at all", post({}), MISTAKE),
    Behaviour("5", "A list instead of an object", post([]), MISTAKE),
    Behaviour("5", "No JSON", post("hello"), MISTAKE),
    Behaviour("5", "JSON that ends too early", post('{"inputs": ['), MISTAKE),
    Behaviour("5", "JSON nested 100,000 deep", and_then(post("[" * 100_000)), MISTAKE),
    Behaviour("5", "An empty body", post(""), EMPTY),
]

CONNECTIONS = [
    Behaviour("2", "Transfer-Encoding: chunked", chunked_json),
    Behaviour("3", "Transfer-Encoding: chunked of a binary body", chunked_binary),
    Behaviour("2", "Expect: 100-continue", expecting),
    Behaviour("2", "Three requests pipelined on one connection", pipelined, "each is answered, in order"),
    Behaviour("2", "Connection: close, and a request after it", closing, "the connection is closed, as RFC 9112 says"),
    Behaviour("2", "HTTP/1.0", http_1_0),
    Behaviour("2", "Content-Encoding: gzip", compressed("gzip"), ENCODINGS),
    Behaviour("2", "Content-Encoding: deflate", compressed("deflate"), ENCODINGS),
    Behaviour("3", "Content-Encoding: gzip of a binary body", compressed_binary, ENCODINGS),
    Behaviour("2", "Content-Encoding: identity", compressed("identity")),
    Behaviour("2", "Content-Encoding: br", compressed("br"), "415, as it cannot be unpacked; native passes it over"),
    Behaviour(
        "2", "40 kB that unpack to 40 MB", and_then(bomb), "413: the limit of a body is that of what it unpacks to"
    ),
    Behaviour("2", "Accept-Encoding: gzip", post(ONE, {"Accept-Encoding": "gzip"}, framing)),
    *(
        Behaviour("2", f"Accept: {kind}", post(ONE, {"Accept": kind}))
        for kind in ("*/*", "text/html", "image/jpeg", "application/x-npy", "application/json;q=0")
    ),
    *(
        Behaviour("2", f"Accept: {kind}", post(ONE, {"Accept": kind}), "a stream, as asked for; native has none here")
        for kind in ("text/event-stream", "application/jsonlines")
    ),
]

ROWS = [*PING, *JSON, *BINARIES, *ERRORS, *CONNECTIONS]
