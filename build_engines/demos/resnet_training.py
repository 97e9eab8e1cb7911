"""Trains the network that reads handwritten digits, on pixels that its own client prepares. Takes minutes."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import ResNetForImageClassification

from build_engines.digits.images import held_out, training
from clients._image import Pixels
from clients.resnet import Client

ROUNDS, EPOCHS, BATCH, LEARNING_RATE = 32, 8, 128, 4e-3
MAX_SHIFT = 3  # pixels of the network's input, in each direction

Labels = NDArray[np.int64]


def train(network: ResNetForImageClassification, client: Client) -> None:
    """Trains in place on rendered digits (AdamW, one cycle, bfloat16); reports the held-out accuracy."""
    torch.set_num_threads(1)  # in layers this thin, threads wait longer for each other than they save
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
    """The share of the held-out fifth that the network reads correctly."""
    images, labels = zip(*held_out(), strict=True)
    with torch.inference_mode():
        logits = network(torch.from_numpy(client.preprocess(images)[client.input.name])).logits
    return float((logits.argmax(1).numpy() == labels).mean())
