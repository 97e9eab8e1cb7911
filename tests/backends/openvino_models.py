"""Makes the repository that the tests' tritonserver serves with OpenVINO: tiny models, and the
bundled ones. A separate process writes the files in OpenVINO's own format, because this process has
loaded ONNX Runtime."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.backends.onnx_models import (
    ENCODER,
    LOOKUP,
    MERGED,
    ONE,
    WARM_UP,
    arithmetic,
    arithmetic_config,
    encoder,
    identity,
    lookup,
    model,
    parameters,
    tensors,
    write_model,
    xy,
)
from tests.support.harness import IDENTITY_VALUES, PATIENCE, ROOT, config_for_cpu, identity_graph

BACKEND = 'backend: "openvino"\n'
ONNX = BACKEND + 'default_model_filename: "model.onnx"\n'
EIGHT = "max_batch_size: 8\n"
NUMBERS = [name for name in IDENTITY_VALUES if name != "BYTES"]
BUNDLED = ("resnet", "yolov5", "bert")

# reads an ONNX file, adds the name NAME_too to each output, and writes OpenVINO's two files
CONVERT = """
import sys, openvino
model = openvino.Core().read_model(sys.argv[1])
for port in model.outputs:
    port.get_tensor().set_names(port.names | {name + "_too" for name in port.names})
openvino.save_model(model, sys.argv[2], compress_to_fp16=False)
"""


def half() -> bytes:
    """Make a model whose output y is the first half of the columns of x. The number of these
    columns is computed: ONNX Runtime leaves it open, and OpenVINO infers 4."""
    return model("""half (float[n, 8] x) => (float[n, half] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
            sizes = Shape(x)
            width = Gather(sizes, one)
            end = Div(width, two)
            y = Slice(x, zero, end, one)
        }""")


BATCHES = ONNX + ONE + EIGHT
CONVERTED = tensors("input", x="UINT8 3", y="FP32 3") + tensors(
    "output", sum="FP16 3", product="FP64 3"
)

# name of a model -> (ONNX file, config.pbtxt)
SERVED: dict[str, tuple[bytes, str]] = {
    "arithmetic": (arithmetic("float[N, K]"), BATCHES + MERGED + arithmetic_config("FP32 -1")),
    "lookup": (lookup(), BATCHES + MERGED + LOOKUP + WARM_UP),
    "encoder": (encoder(), BATCHES + MERGED + ENCODER + parameters(INFERENCE_PRECISION_HINT="f32")),
    "encoder_bf16": (encoder(), BATCHES + MERGED + ENCODER),
    "numbers": (
        model(identity_graph(NUMBERS)),
        BATCHES
        + MERGED
        + tensors("input", **{f"in_{name}": f"{name} -1" for name in NUMBERS})
        + tensors("output", **{f"out_{name}": f"{name} -1" for name in NUMBERS}),
    ),
    "scalar": (arithmetic("float"), ONNX + ONE),
    "minimal": (arithmetic("float[batch, 3]"), ONNX + ONE + "max_batch_size: 16\n"),
    "half": (half(), BATCHES + tensors("input", x="FP32 8") + tensors("output", y="FP32 -1")),
    "converted": (
        arithmetic("float[N, 3]"),
        BATCHES
        + CONVERTED
        + parameters(
            client="resnet",
            HINT_BF16="YES",
            TARGET_DEVICE="CPU",
            COMPILATION_NUM_THREADS="1",
            CPU_THREADS_NUM="3",
        ),
    ),
    "two_instances": (
        arithmetic("float[N, 3]"),
        BATCHES.replace("count: 1", "count: 2")
        + arithmetic_config("FP32 3")
        + parameters(INFERENCE_NUM_THREADS="2", INFERENCE_PRECISION_HINT="f32"),
    ),
    "streams": (
        arithmetic("float[N, 3]"),
        BATCHES
        + MERGED
        + arithmetic_config("FP32 3")
        + parameters(INFERENCE_NUM_THREADS="2", NUM_STREAMS="2", PERFORMANCE_HINT="throughput"),
    ),
}

ROWS, XY = identity("float[N, 3]"), ONNX + EIGHT + xy("FP32 3")
# name of a model that must not load -> (ONNX file, config.pbtxt, a pattern of the reason)
REFUSED: dict[str, tuple[bytes, str, str]] = {
    "bad_string": (identity("string[N, 3]"), ONNX + EIGHT, "'x'"),
    "bad_output": (
        ROWS,
        ONNX + EIGHT + tensors("input", x="FP32 3") + tensors("output", z="FP32 3"),
        "'z'",
    ),
    "bad_batch": (identity("float[1, 3]"), XY, r"\[1, 3\].*batch dimension of max_batch_size"),
    "bad_own_batch": (identity("float[1, 3]"), ONNX + EIGHT, "max_batch_size 0"),
    "bad_hint": (ROWS, XY + parameters(NUM_STREAMS="many"), "'NUM_STREAMS'"),
    "bad_device": (ROWS, XY + parameters(TARGET_DEVICE="NPU"), "'TARGET_DEVICE'.*'NPU'"),
    "bad_rows": (ROWS, XY + parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES"), "any number of rows"),
    "bad_extension": (
        ROWS,
        XY + parameters(CPU_EXTENSION_PATH="/nowhere.so"),
        "'CPU_EXTENSION_PATH'",
    ),
    "bad_filename": (ROWS, BACKEND + EIGHT + xy("FP32 3"), "default_model_filename"),
    "bad_file": (b"this is not an ONNX file", XY, "bad_file/1/model.onnx"),
}


def write_repository(folder: Path) -> None:
    """Write the models above (two of them in OpenVINO's own format) and the bundled models."""
    for name, (file, config, *_) in (SERVED | REFUSED).items():
        write_model(folder / name, file, config)
    (folder / "lookup/warmup").mkdir()
    (folder / "lookup/warmup/good").write_bytes(np.array([1], dtype=np.int64).tobytes())
    write_own_format(folder / "own_format", folder / "minimal/1/model.onnx")
    shutil.copytree(folder / "own_format", folder / "own_names")
    outputs = tensors("output", sum_too="FP32 3", product="FP32 3")
    text = BACKEND + ONE + EIGHT + tensors("input", x="FP32 3", y="FP32 3") + outputs
    (folder / "own_names/config.pbtxt").write_text(text)
    for name in BUNDLED:
        write_bundled(folder / name)


def write_own_format(folder: Path, onnx: Path) -> None:
    """Write model.xml and model.bin without a config.pbtxt. Each output has two names."""
    (folder / "1").mkdir(parents=True)
    command = [sys.executable, "-c", CONVERT, str(onnx), str(folder / "1/model.xml")]
    subprocess.run(command, check=True, timeout=PATIENCE)


def write_bundled(folder: Path) -> None:
    own = ROOT / "model_repository" / folder.name
    platform, lines = 'platform: "onnxruntime_onnx"\n', config_for_cpu(own)
    if platform not in lines:
        raise ValueError(f"{own} does not name the platform onnxruntime_onnx")
    shutil.copytree(own, folder, symlinks=True)
    shutil.rmtree(folder / "configs")
    (folder / "config.pbtxt").write_text(lines.replace(platform, ONNX))
