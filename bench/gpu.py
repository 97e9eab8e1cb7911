"""Measure this project with PyTorch models on a GPU: ResNet-50 and BERT-base with random weights,
through this project's own PyTorch backend.

python -m bench.gpu                           on the first GPU
python -m bench.gpu --kind KIND_CPU --small   the same steps with small networks, without a GPU

It compares the answers with those of the same networks in this process, and exits with 1 if they
differ. It needs PyTorch and transformers, which the serving image does not contain.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import requests
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from transformers import BertConfig, BertModel, ResNetConfig, ResNetForImageClassification

from serving.host.processes import memory_used_by
from tests.support.harness import Server

CALLERS = 16
BATCH = 8  # batch size for the network in this process
GIB = 2**30
MUCH = 2**20  # in GiB; more than any machine has
# The largest difference allowed between the server's output and that of the same network in this
# process. FP32 on a GPU may use TF32, whose fraction has 10 bits.
TOLERANCE = {"KIND_GPU": 5e-2, "KIND_CPU": 1e-3}
CONFIG = """
platform: "pytorch_libtorch"
max_batch_size: {batch}
{tensors}
instance_group {{ count: 1 kind: {kind} }}
dynamic_batching {{ }}
{parameters}
"""
CLIENT = 'parameters { key: "client" value { string_value: "image_classification" } }'


class Classifier(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """A ResNet. It maps UINT8 pixels [batch, 3, 224, 224] to FP32 logits [batch, 1000]."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.network = ResNetForImageClassification(config)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(pixels.float() / 127.5 - 1).logits


class Encoder(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """A BERT. It maps INT64 input_ids [batch, tokens] to an FP32 pooled output [batch, hidden
    size]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.network = BertModel(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.network(input_ids, torch.ones_like(input_ids)).pooler_output


class Greedy(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Allocates `gibibytes` GiB of memory, and returns `gibibytes`."""

    def forward(self, gibibytes: Tensor) -> Tensor:
        size = int(gibibytes[0, 0]) << 30
        taken = torch.empty([size], dtype=torch.uint8, device=gibibytes.device)
        return gibibytes + 0 * taken[:1]


@dataclass(frozen=True)
class Case:
    """A model, and an example of its only input, which is called `input`. `tensors` describes the
    inputs and outputs in config.pbtxt."""

    name: str
    module: Any
    input: str
    example: Tensor
    tensors: str
    parameters: str = ""
    batch: int = 32

    def infer(self, server: Server, values: Tensor) -> requests.Response:
        datatype = "UINT8" if values.dtype == torch.uint8 else "INT64"
        tensor = {
            "name": self.input,
            "shape": list(values.shape),
            "datatype": datatype,
            "data": values.flatten().tolist(),
        }
        return server.post(f"/models/{self.name}/invoke", json={"inputs": [tensor]})


def cases(small: bool) -> list[Case]:
    """Return the models. If `small` is true, they are networks of a few layers."""
    torch.manual_seed(0)
    resnet = ResNetConfig(num_labels=1000)
    bert = BertConfig()
    if small:
        resnet = ResNetConfig(depths=[1], hidden_sizes=[16], embedding_size=8, num_labels=1000)
        bert = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    image = 'input { name: "pixels" data_type: TYPE_UINT8 dims: [3, 224, 224] }'
    logits = 'output { name: "logits" data_type: TYPE_FP32 dims: [1000] }'
    ids = 'input { name: "input_ids" data_type: TYPE_INT64 dims: [-1] }'
    pooled = f'output {{ name: "pooled" data_type: TYPE_FP32 dims: [{bert.hidden_size}] }}'
    size = 'input { name: "gibibytes" data_type: TYPE_INT64 dims: [1] }'
    same = 'output { name: "same" data_type: TYPE_INT64 dims: [1] }'
    pixels = torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8)
    tokens = torch.randint(bert.vocab_size, (2, 128))
    nothing = torch.zeros(1, 1, dtype=torch.int64)
    return [
        Case("resnet50", Classifier(resnet), "pixels", pixels, f"{image}\n{logits}", CLIENT),
        Case("bert_base", Encoder(bert), "input_ids", tokens, f"{ids}\n{pooled}"),
        Case("greedy", Greedy(), "gibibytes", nothing, f"{size}\n{same}", batch=1),
    ]


def write(case: Case, folder: Path, kind: str) -> Path:
    """Write the model as an unpacked archive. Return the folder that POST /models loads."""
    archive = folder / "models" / case.name / "model"
    version = archive / case.name / "1"
    version.mkdir(parents=True)
    config = CONFIG.format(
        batch=case.batch, tensors=case.tensors, kind=kind, parameters=case.parameters
    )
    (version.parent / "config.pbtxt").write_text(config)
    module = case.module.eval()
    with torch.inference_mode():
        if isinstance(module, Greedy):  # a trace would always allocate the example's size
            saved = torch.jit.script(module)
        else:
            saved = torch.jit.trace(module, case.example)
    saved.save(str(version / "model.pt"))
    return archive


class Memory:
    """Measures the memory in use in bytes: the GPU's, or that of tritonserver and the processes of
    the models."""

    def __init__(self, kind: str, server: Server) -> None:
        self.on_gpu = kind == "KIND_GPU"
        self.server = server

    def used(self) -> int:
        if self.on_gpu:
            free, total = torch.cuda.mem_get_info()
            return int(total - free)
        return memory_used_by(self.server.pid("tritonserver"))


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    empty = folder / "models"
    empty.mkdir()
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SERVE_MODEL_MEMORY_SHARE": "0.9"}
    server = Server(folder, empty, **variables).wait_ready()
    try:
        yield server
    finally:
        server.stop()


def load(case: Case, archive: Path, server: Server) -> float:
    """Load the model. Return how many seconds it took."""
    began = time.monotonic()
    reply = server.post("/models", json={"model_name": case.name, "url": str(archive)})
    if reply.status_code != 200:
        raise SystemExit(f"{case.name} is not loaded: {reply.text}")
    return time.monotonic() - began


def answer(case: Case, server: Server) -> NDArray[np.float32]:
    (output,) = case.infer(server, case.example).json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def expected(case: Case, device: Any) -> NDArray[np.float32]:
    """Run the network on its example in this process, and return the output."""
    with torch.inference_mode():
        output = case.module.to(device)(case.example.to(device))
    result: NDArray[np.float32] = output.cpu().numpy()
    return result


def jpeg() -> bytes:
    """Return a photo-like JPEG of 600 x 400 pixels."""
    small = np.random.default_rng(0).integers(0, 256, (25, 38, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((600, 400), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def served_rate(case: Case, server: Server, seconds: float) -> float:
    """Return the number of photos that the server classifies per second for CALLERS concurrent
    callers."""
    photo = jpeg()
    end = time.monotonic() + seconds

    def call(_: int) -> int:
        answers = 0
        with requests.Session() as session:
            session.headers["Content-Type"] = "image/jpeg"
            while time.monotonic() < end:
                reply = session.post(f"{server.url}/models/{case.name}/invoke", data=photo)
                reply.raise_for_status()
                answers += 1
        return answers

    with ThreadPoolExecutor(CALLERS) as callers:
        return sum(callers.map(call, range(CALLERS))) / seconds


def own_rate(case: Case, device: Any, seconds: float) -> float:
    """Return the number of images that the network classifies per second in this process, in
    batches of BATCH that are on the device already."""
    images = case.example[:1].repeat(BATCH, 1, 1, 1).to(device)
    runs = 0
    end = time.monotonic() + seconds
    with torch.inference_mode():
        case.module(images).cpu()  # to warm up
        while time.monotonic() < end:
            case.module(images).cpu()
            runs += 1
    return runs * BATCH / seconds


def check(is_right: bool, text: str) -> None:
    """Print `text`. If `is_right` is false, end the program with status 1."""
    print(text, flush=True)
    if not is_right:
        raise SystemExit(1)


def measure(kind: str, small: bool, seconds: float, folder: Path) -> None:
    """Run all steps, and print the results. End the program with status 1 if a check fails."""
    resnet, bert, greedy = cases(small)
    with serving(folder) as server:
        memory = Memory(kind, server)
        for case in (resnet, bert):
            archive = write(case, folder, kind)
            before = memory.used()
            took = load(case, archive, server)
            print(f"{case.name}: loaded in {took:.1f} s")
            answered = answer(case, server)
            if case is resnet:
                rate = served_rate(case, server, seconds)
                print(f"photos for {CALLERS} callers: {rate:.0f}/s")
            loaded = memory.used()
            unload(case, server)
            after = memory.used()
            check(
                after - before < (loaded - before) / 4,
                f"{case.name}: took {(loaded - before) / GIB:.2f} GiB; "
                f"{(after - before) / GIB:.2f} GiB are left after the unload",
            )
            compare(case, answered, kind, seconds)
        load(greedy, write(greedy, folder, kind), server)
        refuse_too_much(greedy, server)


def compare(case: Case, answered: NDArray[np.float32], kind: str, seconds: float) -> None:
    """Compare an answer with that of the network in this process. The server has unloaded its
    model, so the network has the device to itself."""
    device = torch.device("cuda" if kind == "KIND_GPU" else "cpu")
    difference = float(np.abs(answered - expected(case, device)).max())
    text = f"{case.name}: largest difference from PyTorch in this process: {difference:.1e}"
    check(difference < TOLERANCE[kind], text)
    if case.name == "resnet50":
        rate = own_rate(case, device, seconds)
        print(f"images in this process, in batches of {BATCH}: {rate:.0f}/s", flush=True)
    case.module.to("cpu")
    torch.cuda.empty_cache()


def unload(case: Case, server: Server) -> None:
    reply = server.ask("DELETE", f"/models/{case.name}")
    check(reply.status_code == 200, f"{case.name}: unloaded, {reply.status_code}")


def refuse_too_much(case: Case, server: Server) -> None:
    """Request more memory than any machine has, and then none, to check that the server answers
    507 and survives."""
    refused = case.infer(server, torch.tensor([[MUCH]]))
    later = case.infer(server, torch.tensor([[0]]))
    text = f"{MUCH} GiB: {refused.status_code}; the next call: {later.status_code}"
    check((refused.status_code, later.status_code) == (507, 200), text)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", choices=("KIND_GPU", "KIND_CPU"), default="KIND_GPU")
    parser.add_argument("--small", action="store_true", help="small networks")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each rate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        measure(options.kind, options.small, options.seconds, Path(folder))


if __name__ == "__main__":
    main()
