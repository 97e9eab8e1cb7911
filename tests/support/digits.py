"""Makes pictures and pages of handwritten digits with their labels, for the bundled `resnet` and
`yolov5`. The digits are scikit-learn's scans of 8×8 pixels. Only a fifth of them is used here, on
which neither network was trained. The same seed gives the same pictures."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from sklearn.datasets import load_digits

INK = 0.4  # opacity from which a pixel counts as ink
Rng = np.random.Generator


class Page(NamedTuple):
    """An RGB page, its boxes [n,4] as xmin, ymin, xmax, ymax in pixels, and their class ids [n]."""

    image: Image.Image
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


def scans() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the held-out scans [359,8,8] with bright ink, and their labels. scikit-learn's file is
    ordered by writer, so the fifth is chosen at random, with a fixed seed."""
    data = load_digits()
    count = len(data.target)
    chosen = np.random.default_rng(0).permutation(count)[: count // 5]
    bright = np.round(data.images[chosen] * (255 / 16))  # scikit-learn's brightness is 0 to 16
    return bright.astype(np.uint8), data.target[chosen]


def held_out(count: int | None = None) -> list[tuple[Image.Image, int]]:
    """Return the first `count` held-out digits, all by default, each as a photo with its label."""
    images, labels = scans()
    photos = []
    for index, (scan, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
        rng = np.random.default_rng((1, index))
        photos.append((photo(scan, rng), int(label)))
    return photos


def photo(scan: NDArray[np.uint8], rng: Rng) -> Image.Image:
    """Return a photo of a single digit: dark on light or light on dark, shifted, turned, blurred
    and noisy."""
    side = np.exp(rng.uniform(np.log(28), np.log(600)))
    sides = side * np.exp(rng.uniform(-0.3, 0.3, 2))
    width, height = np.clip(sides, 28, 600).astype(int).tolist()
    glyph = _glyph(scan, rng.uniform(0.5, 1.0) * min(width, height), rng)
    size = (width, height)
    left = _position(width - glyph.width, rng)
    top = _position(height - glyph.height, rng)
    ink = Image.new("L", size)
    ink.paste(glyph, (left, top))
    dark = rng.uniform(0, 165)
    light = rng.uniform(dark + 90, 255)
    paper, stroke = (light, dark) if rng.random() < 0.5 else (dark, light)
    stroke_colour = _plain(size, stroke, rng)
    paper_colour = _plain(size, paper, rng)
    return _exposed(Image.composite(stroke_colour, paper_colour, ink), rng)


def held_out_pages(seed: int) -> Iterator[Page]:
    """Yield pages of held-out digits without end."""
    rng = np.random.default_rng([seed, 2])
    images, labels = scans()
    while True:
        yield _page(rng, images, labels)


def _page(rng: Rng, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Page:
    """Return a page of digits on an irregular grid, between printed lines and words."""
    width, height = (int(side) for side in rng.integers(400, 1200, 2))
    is_dark = rng.random() < 0.3
    paper = rng.uniform(15, 60) if is_dark else rng.uniform(200, 250)
    stroke = (235, 230, 220) if is_dark else (25, 30, 60)
    page = _plain((width, height), paper, rng)
    drawing = ImageDraw.Draw(page)
    for _ in range(rng.integers(0, 5)):
        tone = (int(rng.uniform(90, 150)),) * 3
        y = rng.uniform(0, height)
        ends = [(0, y), (width, y + rng.normal(0, 10))]
        drawing.line(ends, tone, 1 + max(width, height) // 400)
        word = "".join(rng.choice(list("aehkmnrtvwxAEHKMNRTVWX"), 6))
        place = (rng.uniform(0, width), rng.uniform(0, height))
        drawing.text(place, word, tone, font_size=max(width, height) // 25)
    size = max(width, height) / 640 * rng.uniform(35, 100)
    cell = size * 1.8
    boxes: list[NDArray[np.float64]] = []
    chosen = []
    for column in range(int(width // cell)):
        for row in range(int(height // cell)):
            if rng.random() < 0.6 and len(boxes) < 40:
                index = int(rng.integers(len(labels)))
                glyph = _glyph(images[index], size * rng.uniform(0.8, 1.1), rng)
                left = int(column * cell + rng.uniform(0, cell - glyph.width))
                top = int(row * cell + rng.uniform(0, cell - glyph.height))
                page.paste(stroke, (left, top), glyph)
                boxes.append(np.add(_ink_box(glyph), (left, top, left, top)))
                chosen.append(labels[index])
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    return Page(_exposed(page, rng), corners, np.array(chosen, np.int64))


def _glyph(scan: NDArray[np.uint8], height: float, rng: Rng) -> Image.Image:
    """Return the digit's opacity, about `height` pixels high and turned by up to 10 degrees."""
    side = max(round(height), 8)
    big = Image.fromarray(scan).resize((side, side), Image.Resampling.BICUBIC)
    return big.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR)


def _ink_box(glyph: Image.Image) -> tuple[int, int, int, int]:
    """Return the box around the glyph's ink, as left, top, right, bottom."""
    ink = np.asarray(glyph) > INK * 255
    (rows,) = np.where(ink.any(1))
    (columns,) = np.where(ink.any(0))
    left, right = int(columns[0]), int(columns[-1]) + 1
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    return left, top, right, bottom


def _position(room: int, rng: Rng) -> int:
    return int(rng.uniform(0, max(room, 0)))


def _plain(size: tuple[int, int], level: float, rng: Rng) -> Image.Image:
    """Return an image of one colour, close to the grey `level`."""
    red, green, blue = np.clip(level + rng.normal(0, 8, 3), 0, 255).astype(int).tolist()
    return Image.new("RGB", size, (red, green, blue))


def _exposed(image: Image.Image, rng: Rng) -> Image.Image:
    """Return the image with the blur of a lens and the noise of a sensor."""
    radius = rng.uniform(0, 0.005) * min(image.size)
    blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(radius)))
    noise = rng.standard_normal(blurred.shape, np.float32) * rng.uniform(0, 8)
    return Image.fromarray((blurred + noise).clip(0, 255).astype(np.uint8))
