"""Row 4 of CONTRACT section 3: SAGEMAKER_TRITON_INFERENCE_TYPE with the models `echo` and `teller`,
which sends many responses."""

from tests.conformance.behaviours import Row, post

MISTAKE = "400, as the caller can mend it; native says 500"
FAILED = "500 and JSON, as the model failed and not the caller"
COUNT = "406 with the way to ask for them; native says 200"
EVENT = "the event is named, and has a code; its data still begin with the error"
SHORTEST = "the shortest number that is the same FP32"
OCTETS = {"Content-Type": "application/octet-stream"}


def _rows(kind: str) -> list[Row]:
    return [
        Row("4", f"{kind}: a text", post({"text_input": "hello"})),
        Row("4", f"{kind}: as octet-stream", post({"text_input": "a"}, OCTETS)),
        Row("4", f"{kind}: a text in a list", post({"text_input": ["hello"]})),
        Row("4", f"{kind}: an id", post({"id": "7", "text_input": "a"})),
        Row(
            "4",
            f"{kind}: parameters",
            post({"text_input": "a", "parameters": {"n": 1}, "max_tokens": 8}),
        ),
        Row("4", f"{kind}: a missing input", post({"other": "a"})),
        Row("4", f"{kind}: an empty object", post({})),
        Row("4", f"{kind}: a number for a text", post({"text_input": 7}), MISTAKE),
        Row("4", f"{kind}: null for a text", post({"text_input": None}), MISTAKE),
        Row("4", f"{kind}: no JSON", post("hello"), MISTAKE),
        Row("4", f"{kind}: an empty body", post(""), MISTAKE),
        Row("4", f"{kind}: a failing model", post({"text_input": "fail by order"}), FAILED),
    ]


GENERATE = _rows("generate")
STREAM = [
    *_rows("generate_stream"),
    Row("4", "generate_stream: many responses", post({"text_input": "one two three"})),
    Row("4", "generate_stream: no response", post({"text_input": ""})),
    Row(
        "4",
        "generate_stream: an error in the middle",
        post({"text_input": "one fail three"}),
        EVENT,
    ),
    Row(
        "4",
        "generate_stream: an optional input",
        post({"text_input": "one two", "delay": 0.01}),
        SHORTEST,
    ),
]
MANY = [
    Row("4", "generate of a model that may give many responses: one", post({"text_input": "one"})),
    Row(
        "4",
        "generate of a model that may give many responses: two",
        post({"text_input": "one two"}),
        COUNT,
    ),
    Row(
        "4",
        "generate of a model that may give many responses: none",
        post({"text_input": ""}),
        COUNT,
    ),
]
