"""ResNets (He et al. 2015, arXiv:1512.03385) as model folders: one that reads digits, one full-size stand-in.

`resnet` is trained here on handwritten digits, in the pixels that its own client makes of them; it is small
enough to be committed. `resnet50` has the architecture and the size of the original with random weights: it
answers nonsense at the true speed, for load tests. Needs torch, transformers and onnxscript.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import ResNetConfig, ResNetForImageClassification

from build_engines.digit_images import held_out, training
from clients.base import Model, TensorSpec
from clients.resnet import IMAGENET_MEAN, IMAGENET_STD, Client, Pixels

INPUT, OUTPUT = "input", "logits"
MAX_BATCH_SIZE = 32
OPSET = 20  # ONNX Runtime 1.19 (Triton 24.10) knows it
EXAMPLE = 49  # the held-out digit that becomes example.png, a 6
ROUNDS, EPOCHS, BATCH, LEARNING_RATE = 32, 8, 128, 4e-3
MAX_SHIFT = 3  # pixels of the network's input, either way

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """One network: its architecture, the square RGB input (`side` pixels), and what its client must know.

    `instances` and `threads` (0: the backend's choice) are for a CPU.
    """

    architecture: dict[str, object]
    side: int
    labels: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    instances: int = 1
    threads: int = 0

    def network(self) -> ResNetForImageClassification:
        """The network with random weights, the same ones every time."""
        torch.manual_seed(0)
        config = ResNetConfig(num_labels=len(self.labels), **self.architecture)
        return ResNetForImageClassification(config).eval()

    def client(self, folder: Path) -> Client:
        """The client as it will be behind Triton; reads labels.txt from the folder."""
        inputs = (TensorSpec(INPUT, "FP32", (3, self.side, self.side)),)
        outputs = (TensorSpec(OUTPUT, "FP32", (len(self.labels),)),)
        return Client(Model(folder.name, folder, inputs, outputs, MAX_BATCH_SIZE, self.settings))


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(map(str, values))


# ResNet-18 at a quarter of its width, 703,386 parameters: the digit may lie anywhere, so all of the image counts.
DIGITS = Recipe(
    {"layer_type": "basic", "depths": (2, 2, 2, 2), "embedding_size": 16, "hidden_sizes": (16, 32, 64, 128)},
    side=64,
    labels=tuple("0123456789"),
    settings={"resize": "stretch", "interpolation": "bilinear", "mean": "0.5", "std": "0.25"},
)
# 25,557,032 parameters; the settings are those of the checkpoint microsoft/resnet-50.
RESNET50 = Recipe(
    {"layer_type": "bottleneck", "depths": (3, 4, 6, 3), "embedding_size": 64,
     "hidden_sizes": (256, 512, 1024, 2048)},
    side=224,
    labels=tuple(f"class_{i}" for i in range(1000)),
    settings={"resize": "shortest", "crop_pct": "0.875", "interpolation": "bicubic",
              "mean": _listed(IMAGENET_MEAN), "std": _listed(IMAGENET_STD)},
    instances=2,
)  # fmt: skip


def build(name: str, folder: Path) -> None:
    """Fills the folder of `resnet` (trained here, in minutes) or `resnet50` (random, in seconds)."""
    recipe = {"resnet": DIGITS, "resnet50": RESNET50}[name]
    write_texts(recipe, folder)
    network = recipe.network()
    if recipe is DIGITS:
        train(network, recipe.client(folder))
    export(network, recipe.side, folder / "1" / "model.onnx")


def write_texts(recipe: Recipe, folder: Path) -> None:
    """Everything but the weights: the two configurations, labels.txt, example.png."""
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config(recipe, "KIND_GPU", 1))
    (folder / "configs" / "cpu.pbtxt").write_text(config(recipe, "KIND_CPU", recipe.instances))
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in recipe.labels))
    held_out(EXAMPLE + 1)[-1][0].save(folder / "example.png", optimize=True)


def config(recipe: Recipe, kind: str, count: int) -> str:
    """config.pbtxt for Triton's ONNX Runtime backend, with the client's settings."""
    parameters = {"client": "resnet", **recipe.settings}
    if kind == "KIND_CPU" and recipe.threads:
        parameters["intra_op_thread_count"] = str(recipe.threads)
    return CONFIG.format(
        batch=MAX_BATCH_SIZE, side=recipe.side, classes=len(recipe.labels), kind=kind, count=count
    ) + "".join(PARAMETER.format(key=key, value=value) for key, value in parameters.items())


CONFIG = """\
# Written by build_engines/resnet.py.
platform: "onnxruntime_onnx"
max_batch_size: {batch}
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ 3, {side}, {side} ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
instance_group [ {{ kind: {kind} count: {count} }} ]
dynamic_batching {{ max_queue_delay_microseconds: 500 }}
"""
PARAMETER = 'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def train(network: ResNetForImageClassification, client: Client) -> None:
    """Trains in place on rendered digits (AdamW, one cycle, bfloat16); reports the held-out accuracy."""
    torch.set_num_threads(1)  # layers this thin lose more by waiting for each other than they gain
    pixels, labels = _training_set(client)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.02)
    steps = len(pixels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, EPOCHS * steps, pct_start=0.15)
    network.to(memory_format=torch.channels_last)
    rng, started = np.random.default_rng(0), time.monotonic()
    for epoch in range(EPOCHS):
        network.train()
        losses = []
        for chosen in np.array_split(rng.permutation(len(pixels)), steps):
            batch = client.normalize(_augmented(pixels[chosen], rng))
            losses.append(_step(network, optimizer, batch, labels[chosen]))
            schedule.step()
        print(f"epoch {epoch + 1}/{EPOCHS}: loss {np.mean(losses):.3f}, {time.monotonic() - started:.0f} s", flush=True)
    network.eval().to(memory_format=torch.contiguous_format)
    print(f"held-out accuracy {_accuracy(network, client):.4f}", flush=True)


def _training_set(client: Client) -> tuple[Pixels, Labels]:
    """Pixels as the client makes them, [n, height, width, 3], and labels [n]; all rounds, on two threads."""

    def one_round(number: int) -> tuple[list[Pixels], list[int]]:
        pairs = [(client.fit(image), label) for image, label in training(number)]
        print(f"rendered round {number + 1}/{ROUNDS}", flush=True)
        return [pixels for pixels, _ in pairs], [label for _, label in pairs]

    with ThreadPoolExecutor(2) as pool:
        rounds = list(pool.map(one_round, range(ROUNDS)))
    return np.concatenate([pixels for pixels, _ in rounds]), np.concatenate([labels for _, labels in rounds])


def _augmented(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Each picture shifted by up to MAX_SHIFT, every other one in negative."""
    count, height, width, _ = pixels.shape
    pixels = np.where(rng.random((count, 1, 1, 1)) < 0.5, 255 - pixels, pixels)
    padded = np.pad(pixels, ((0, 0), (MAX_SHIFT,) * 2, (MAX_SHIFT,) * 2, (0, 0)), mode="edge")
    top, left = rng.integers(0, 2 * MAX_SHIFT + 1, (2, count))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))  # type: ignore[call-overload]
    shifted: Pixels = windows[np.arange(count), top, left].transpose(0, 2, 3, 1)
    return shifted


def _step(
    network: ResNetForImageClassification, optimizer: torch.optim.Optimizer, batch: NDArray[np.float32], labels: Labels
) -> float:
    images = torch.from_numpy(batch).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(images).logits
    loss = cross_entropy(logits.float(), torch.from_numpy(labels), label_smoothing=0.05)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _accuracy(network: ResNetForImageClassification, client: Client) -> float:
    """Share of the held-out fifth that is read rightly."""
    images, labels = zip(*held_out(), strict=True)
    with torch.inference_mode():
        logits = network(torch.from_numpy(client.preprocess(images)[INPUT])).logits
    return float((logits.argmax(1).numpy() == labels).mean())


class _Logits(torch.nn.Module):  # type: ignore[misc]
    """The network as images -> logits, without the classes that transformers wraps results in."""

    def __init__(self, network: ResNetForImageClassification) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(images, return_dict=False)[0]
        return logits


def export(network: ResNetForImageClassification, side: int, path: Path) -> None:
    """One ONNX file, the batch dimension free; written under another name first, so it is never half there."""
    program = torch.onnx.export(
        _Logits(network).eval(),
        (torch.zeros(2, 3, side, side),),
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    model = _without_traces(program.model_proto)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(model.SerializeToString())
    part.replace(path)


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the exporter's notes: stack traces, and with them the paths of this machine."""
    graph = model.graph
    noted = (model, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output)
    for part in noted:
        del part.metadata_props[:]
    return model
