"""Makes tiny ONNX models, and the repository that the tests' tritonserver serves."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.backends.triton_process import Arrays
from tests.support.harness import parsed

TABLE = np.array([10.0, 11.0, 12.0, 13.0, 14.0], dtype=np.float32)


def model(graph: str) -> bytes:
    """Return an ONNX file, given its graph in the syntax of ONNX's parser."""
    proto = parsed(graph)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def arithmetic(tensor: str) -> bytes:
    """Make a model of sum = x + y and product = x * y. All tensors have this type, such as
    "float[N, 3]"."""
    return model(f"""arithmetic ({tensor} x, {tensor} y) => ({tensor} sum, {tensor} product) {{
        sum = Add (x, y)
        product = Mul (x, y)
    }}""")


def lookup() -> bytes:
    """Make a model of value = TABLE[index], which fails if the index is past the table, and double
    = index + index."""
    table = ", ".join(map(str, TABLE))
    return model(f"""lookup (int64[N, 1] index) => (float[N, 1] value, int64[N, 1] double)
        <float[{len(TABLE)}] table = {{{table}}}> {{
        value = Gather (table, index)
        double = Add (index, index)
    }}""")


def identity(tensor: str) -> bytes:
    return model(f"identity ({tensor} x) => ({tensor} y) {{ y = Identity (x) }}")


def optional_bias() -> bytes:
    """Make a model of y = x + bias, where bias is 100 if the caller does not send it."""
    return model("""optional_bias (float[N, 1] x, float[M, 1] bias) => (float[N, 1] y)
        <float[1, 1] bias = {100.0}> { y = Add (x, bias) }""")


LONGEST = 509  # tokens
HIDDEN = 16


def encoder() -> bytes:
    """Make a text network that has outputs for every kind of task: for each token
    (last_hidden_state, and `starts` for the starts of answers), for each text (sentence_embedding),
    and for each mask (`masks`). The state of a token depends on all tokens of its text."""
    proto = parsed(f"""encoder (int64[batch, sequence] input_ids,
        int64[batch, sequence] attention_mask, int64[batch, sequence] token_type_ids,
        int64[batch, m] masked_lm_positions) =>
        (float[batch, sequence, {HIDDEN}] last_hidden_state,
        float[batch, {HIDDEN}] sentence_embedding,
        float[batch, sequence] starts, float[batch, m, {HIDDEN}] masks)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] second = {{1}}, int64[1] last = {{-1}}> {{
        shape = Shape (input_ids)
        length = Gather (shape, one)
        places = Range (zero, length, one)
        word = Gather (words, input_ids)
        place = Gather (positions, places)
        kind = Gather (types, token_type_ids)
        placed = Add (word, place)
        state = Add (placed, kind)
        kept = Cast <to = 1> (attention_mask)
        weight = Unsqueeze (kept, last)
        weighted = Mul (state, weight)
        total = ReduceSum (weighted, second)
        count = ReduceSum (weight, second)
        mean = Div (total, count)
        last_hidden_state = Add (state, mean)
        sentence_embedding = Squeeze (mean, second)
        starts = Gather <axis = 2> (last_hidden_state, zero)
        indices = Unsqueeze (masked_lm_positions, last)
        masks = GatherND <batch_dims = 1> (last_hidden_state, indices)
    }}""")
    rng = np.random.default_rng(0)
    for name, rows in (("words", 50), ("positions", LONGEST), ("types", 2)):
        table = rng.normal(0, 0.5, (rows, HIDDEN)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(table, name))
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def text_feed(
    rows: int, length: int, masks: int = 1, **more: NDArray[Any]
) -> tuple[Arrays, Arrays]:
    """Return two dictionaries for random texts: the inputs that a client sends, and all inputs of
    the model."""
    rng = np.random.default_rng([rows, length])
    ids = rng.integers(1, 50, (rows, length))
    sent = {"input_ids": ids, "masked_lm_positions": rng.integers(0, length, (rows, masks)), **more}
    return sent, {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)} | sent


def reference(file: bytes | str, feed: Arrays) -> Arrays:
    """Return the outputs that ONNX Runtime computes in this process."""
    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


# the default of max_batch_size becomes 6
SIX = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--backend-config=default-max-batch-size=6"}
OTHER_FILENAME = "net.onnx"
PLATFORM = 'platform: "onnxruntime_onnx"\n'
ONE = "instance_group [{ kind: KIND_CPU, count: 1 }]\n"
EIGHT = PLATFORM + ONE + "max_batch_size: 8\n"
MERGED = "dynamic_batching { max_queue_delay_microseconds: 200000 }\n"


def tensors(side: str, **dims: str) -> str:
    """Return entries of config.pbtxt. For example, `name="FP32 3,2"` is a tensor with two
    dimensions."""
    entries = []
    for name, spec in dims.items():
        datatype, shape = spec.split()
        entries.append(f'{{ name: "{name}", data_type: TYPE_{datatype}, dims: [{shape}] }}')
    return f"{side} [{', '.join(entries)}]\n"


def parameters(**values: str) -> str:
    lines = (
        f'parameters {{ key: "{key}" value: {{ string_value: "{text}" }} }}\n'
        for key, text in values.items()
    )
    return "".join(lines)


def xy(dims: str) -> str:
    return tensors("input", x=dims) + tensors("output", y=dims)


def arithmetic_config(dims: str) -> str:
    return tensors("input", x=dims, y=dims) + tensors("output", sum=dims, product=dims)


# For `lookup`. There is no test of a warm-up that fails, because Triton 2.51 may crash (SIGSEGV).
WARM_UP = (
    'model_warmup [{ name: "first", batch_size: 8, inputs { key: "index" value: '
    '{ data_type: TYPE_INT64, dims: [1], input_data_file: "good" } } }]\n'
)


LOOKUP = tensors("input", index="INT64 1") + tensors("output", value="FP32 1", double="INT64 1")
THREADS = (
    parameters(intra_op_thread_count="3", execution_mode="1")
    + "optimization { graph { level: -1 } }\n"
)
AT_ONCE = parameters(intra_op_thread_count="2", separate_runs="true")

# the configuration that `serve` stages for a text model
ENCODER = tensors(
    "input", input_ids="INT64 -1", attention_mask="INT64 -1", token_type_ids="INT64 -1"
)
ENCODER = ENCODER.replace("[-1] }", "[-1], allow_ragged_batch: true, optional: true }")
ENCODER = ENCODER.replace(", optional: true", "", 1)
ENCODER += tensors("input", masked_lm_positions="INT64 -1")
ENCODER += tensors(
    "output",
    last_hidden_state=f"FP32 -1,{HIDDEN}",
    sentence_embedding=f"FP32 {HIDDEN}",
    starts="FP32 -1",
    masks=f"FP32 -1,{HIDDEN}",
)
ENCODER += parameters(ragged_batches=str(LONGEST))

# name of a model -> (ONNX file, config.pbtxt or None)
SERVED: dict[str, tuple[bytes, str | None]] = {
    "arithmetic": (arithmetic("float[N, K]"), EIGHT + MERGED + arithmetic_config("FP32 -1")),
    "lookup": (lookup(), EIGHT + MERGED + LOOKUP + WARM_UP),
    "encoder": (encoder(), EIGHT + MERGED + ENCODER),
    "texts": (identity("string[N, K]"), EIGHT + MERGED + xy("STRING -1")),
    "at_once": (lookup(), EIGHT + MERGED + LOOKUP + AT_ONCE),
    "unbatched": (
        arithmetic("float[2, 3]"),
        PLATFORM + ONE + "max_batch_size: 0\n" + arithmetic_config("FP32 2,3"),
    ),
    "two_instances": (
        arithmetic("float[N, 3]"),
        EIGHT.replace("count: 1", "count: 2") + THREADS + arithmetic_config("FP32 3"),
    ),
    "without_config": (arithmetic("float[batch, 3, width]"), None),
    "minimal_config": (arithmetic("float[batch, 3]"), PLATFORM + ONE + "max_batch_size: 16\n"),
    "fixed_shape": (
        arithmetic("float[2, 3]"),
        PLATFORM + ONE + f'default_model_filename: "{OTHER_FILENAME}"\n',
    ),
    "optional_input": (
        optional_bias(),
        EIGHT
        + MERGED
        + tensors("input", x="FP32 1", bias="FP32 1").replace("}]", ", optional: true }]")
        + tensors("output", y="FP32 1"),
    ),
    "vector": (arithmetic("float[batch]"), PLATFORM + ONE),
    "scalar": (arithmetic("float"), PLATFORM + ONE),
}

ROWS = identity("float[N, 3]")
BATCH = "max_batch_size: 8\n"
# name of a model that must not load -> (ONNX file, config.pbtxt, a word of the reason)
REFUSED: dict[str, tuple[bytes, str, str]] = {
    "bad_shape": (arithmetic("float[N, 3]"), BATCH + arithmetic_config("FP32 4"), "'x'"),
    "bad_rank": (arithmetic("float[N, 3]"), arithmetic_config("FP32 3"), "'x'"),
    "bad_datatype": (ROWS, BATCH + xy("INT32 3"), "INT32"),
    "bad_output": (
        ROWS,
        BATCH + tensors("input", x="FP32 3") + tensors("output", z="FP32 3"),
        "'z'",
    ),
    "bad_missing": (
        arithmetic("float[N, 3]"),
        BATCH + tensors("input", x="FP32 3") + tensors("output", sum="FP32 3"),
        "'y'",
    ),
    "bad_batch": (identity("float[1, 3]"), BATCH, "max_batch_size"),
    "bad_bfloat16": (identity("bfloat16[N, 3]"), "", "'x'"),
    "bad_file": (b"this is not an ONNX file", BATCH + xy("FP32 3"), "bad_file/1/model.onnx"),
}


def write_model(folder: Path, file: bytes, config: str | None) -> None:
    (folder / "1").mkdir(parents=True)
    filename = OTHER_FILENAME if OTHER_FILENAME in (config or "") else "model.onnx"
    (folder / "1" / filename).write_bytes(file)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)


def write_repository(folder: Path) -> None:
    for name, (file, config) in SERVED.items():
        write_model(folder / name, file, config)
    for name, (file, text, _) in REFUSED.items():
        write_model(folder / name, file, PLATFORM + ONE + text)
    (folder / "lookup/warmup").mkdir()
    (folder / "lookup/warmup/good").write_bytes(np.array([1], dtype=np.int64).tobytes())
