"""Held-out pages: held-out digits in rows, tables and loose grids, drawn with Pillow on textured paper.

This generator is independent of pages.py on purpose (other layouts, backgrounds, resampling and clutter). They share
only the form of a page and the rule for what counts as ink, because these define the task.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from build_engines.digits.pages import LARGEST, LEGIBLE, LETTERBOX, SMALLEST, Page, ink_box
from build_engines.digits.scans import Digits, split

Grey = NDArray[np.float32]
Spot = tuple[float, float, float]  # x, y of a digit's middle and its height, in pixels of the page


def held_out_pages(seed: int) -> Iterator[Page]:
    """Endless pages of held-out digits; the same seed gives the same pages."""
    _, digits = split()
    rng = np.random.default_rng([seed, 2])
    while True:
        yield held_out_page(rng, digits)


def held_out_page(rng: np.random.Generator, digits: Digits) -> Page:
    """One page: a textured background, printed lines and marks, then digits arranged as people arrange them."""
    width, height = (int(side) for side in rng.integers(200, 1500, 2))
    width, height = max(width, height // 4), max(height, width // 4)
    dark = rng.random() < 0.3
    page = _ground(rng, width, height, dark)
    scale = LETTERBOX / max(width, height)
    low = max(SMALLEST, LEGIBLE * scale) * 1.15
    size = low * (LARGEST * 0.85 / low) ** rng.beta(1.5, 0.8) / scale
    layout = (_rows, _table, _loose)[rng.integers(3)]
    drawing = ImageDraw.Draw(page)
    _furniture(rng, drawing, dark)
    spots = layout(rng, drawing, size)
    boxes, labels = _write(rng, page, digits, spots, dark)
    return Page(_photograph(rng, page), boxes, labels)


def _ground(rng: np.random.Generator, width: int, height: int, dark: bool) -> Image.Image:
    """A lightly coloured background of blotches (a few enlarged random pixels) under a vignette."""
    level = rng.uniform(15, 80) if dark else rng.choice([250, 235, rng.uniform(150, 220)])
    blotches = rng.normal(level, rng.uniform(0, 9), rng.integers(2, 9, 2)).clip(0, 255).astype(np.uint8)
    paper = np.asarray(Image.fromarray(blotches).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    x, y = np.linspace(-1, 1, width)[None], np.linspace(-1, 1, height)[:, None]
    light: NDArray[np.float64] = np.square(x) + np.square(y)
    light *= -rng.uniform(0, 0.18)
    light += 1
    light *= paper
    colour = rng.uniform(0.92, 1.0, 3)
    return Image.merge("RGB", [Image.fromarray((light * share).astype(np.uint8)) for share in colour])


def _rows(rng: np.random.Generator, drawing: ImageDraw.ImageDraw, size: float) -> list[Spot]:
    """Numbers of one to six digits along slightly sloped lines."""
    width, height = _extent(drawing)
    spots: list[Spot] = []
    y = size * rng.uniform(0.7, 1.5)
    while y < height - 0.6 * size and len(spots) < 40:
        x, slope = size * rng.uniform(0.5, 3), rng.normal(0, 0.02)
        while x < width - 0.5 * size:
            for _ in range(rng.integers(1, 7)):
                spots.append((x, y + slope * x + rng.normal(0, 0.04) * size, size * rng.uniform(0.88, 1.05)))
                x += size * rng.uniform(0.85, 1.1)
            x += size * rng.uniform(0.5, 4)
        y += size * rng.uniform(1.3, 3)
    return spots


def _table(rng: np.random.Generator, drawing: ImageDraw.ImageDraw, size: float) -> list[Spot]:
    """One digit in some of the cells of a printed table."""
    width, height = _extent(drawing)
    cell = size * rng.uniform(1.35, 2.2)
    left, top = rng.uniform(0, 0.3) * width, rng.uniform(0, 0.3) * height
    columns, rows = int(min((width - left) // cell, 9)), int(min((height - top) // cell, 7))
    tone, line = int(rng.uniform(90, 170)), max(1, int(size / 40))
    for i in range(rows + 1 if columns and rows else 0):
        drawing.line([(left, top + i * cell), (left + columns * cell, top + i * cell)], (tone,) * 3, line)
    for i in range(columns + 1 if columns and rows else 0):
        drawing.line([(left + i * cell, top), (left + i * cell, top + rows * cell)], (tone,) * 3, line)
    filled = [(c, r) for c in range(columns) for r in range(rows) if rng.random() < 0.6]
    return [(left + (c + 0.5) * cell, top + (r + 0.5) * cell, size * rng.uniform(0.8, 1)) for c, r in filled]


def _loose(rng: np.random.Generator, drawing: ImageDraw.ImageDraw, size: float) -> list[Spot]:
    """Digits of very different sizes on a grid with so much random shift that it does not look like one."""
    width, height = _extent(drawing)
    cell = size * rng.uniform(1.6, 2.6)
    spots: list[Spot] = []
    for column in range(int(width // cell)):
        for row in range(int(height // cell)):
            if rng.random() < 0.35 and len(spots) < 40:
                shake = rng.uniform(-0.25, 0.25, 2) * cell
                middle = (column + 0.5) * cell + shake[0], (row + 0.5) * cell + shake[1]
                spots.append((*middle, size * rng.uniform(0.6, 1.1)))
    return spots


def _extent(drawing: ImageDraw.ImageDraw) -> tuple[int, int]:
    width, height = drawing.im.size
    return int(width), int(height)


def _write(
    rng: np.random.Generator, page: Image.Image, digits: Digits, spots: list[Spot], dark: bool
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Writes a digit at every spot where it fits, with one or two pens for all."""
    images, classes = digits
    scale = LETTERBOX / max(page.size)
    pens = [_pen(rng, dark) for _ in range(rng.integers(1, 3))]
    boxes, labels = [], []
    for x, y, size in spots:
        chosen = int(rng.integers(len(classes)))
        opacity = _glyph(rng, images[chosen], size)
        left, top = int(x - opacity.width / 2), int(y - opacity.height / 2)
        box = np.add(ink_box(np.asarray(opacity, np.float32) / 255), (left, top) * 2)
        longer = max(box[2:] - box[:2]) * scale
        inside = min(box[:2]) >= 0 and box[2] <= page.width and box[3] <= page.height
        if inside and SMALLEST <= longer <= LARGEST and longer >= LEGIBLE * scale:
            page.paste(pens[rng.integers(len(pens))], (left, top), opacity)
            boxes.append(box)
            labels.append(int(classes[chosen]))
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64)


def _pen(rng: np.random.Generator, dark: bool) -> tuple[int, int, int]:
    """A colour: black, blue, red or pencil; chalk on a dark background."""
    dark_pens = [(20, 20, 25), (30, 40, 130), (140, 25, 30), (85, 85, 85)]
    red, green, blue = (
        [(235, 235, 230), (240, 220, 150), (190, 215, 240)][rng.integers(3)] if dark else dark_pens[rng.integers(4)]
    )
    return red, green, blue


def _glyph(rng: np.random.Generator, digit: NDArray[np.uint8], size: float) -> Image.Image:
    """The digit's opacity as a picture: enlarged, rotated by up to 10 degrees, smoothed, with sharpened edges."""
    source = Image.fromarray(np.pad(digit, 2))
    big = source.resize((max(round(size * 1.5), 12),) * 2, Image.Resampling.LANCZOS)
    turned = big.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR)
    smooth = turned.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.02) * size))
    firmness, middle = rng.uniform(4, 12), rng.uniform(0.38, 0.52)
    soft = 1 / (1 + np.exp(-firmness * (np.asarray(smooth, np.float32) / 255 - middle)))
    floor = 1 / (1 + np.exp(firmness * middle))
    return Image.fromarray(((soft - floor).clip(0) / (soft.max() - floor) * 255).astype(np.uint8))


def _furniture(rng: np.random.Generator, drawing: ImageDraw.ImageDraw, dark: bool) -> None:
    """Other marks on a page: rules, a frame, words, arrows, coffee rings, crossings-out."""
    width, height = _extent(drawing)
    unit = max(width, height) / LETTERBOX
    for _ in range(rng.integers(0, 7)):
        tone = tuple((rng.uniform(60, 150, 3) if dark else rng.uniform(120, 210, 3)).astype(int).tolist())
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        FURNITURE[rng.integers(len(FURNITURE))](rng, drawing, (x, y), unit, tone)


def _word(
    rng: np.random.Generator, drawing: ImageDraw.ImageDraw, at: tuple[float, float], unit: float, tone: tuple[int, ...]
) -> None:
    text = "".join(rng.choice(list("aehkmnrtvwxAEHKMNRTVWX"), int(rng.integers(2, 9))))
    drawing.text(at, text, tone, font_size=max(unit * rng.uniform(10, 60), 8))


def _rule(
    rng: np.random.Generator, drawing: ImageDraw.ImageDraw, at: tuple[float, float], unit: float, tone: tuple[int, ...]
) -> None:
    width, height = _extent(drawing)
    drawing.line([(0, at[1]), (width, at[1] + rng.normal(0, 10))], tone, 1 + int(unit * rng.uniform(0, 3)))
    drawing.line([(at[0], 0), (at[0], height)], tone, 1 + int(unit * rng.uniform(0, 3)))


def _ring(
    rng: np.random.Generator, drawing: ImageDraw.ImageDraw, at: tuple[float, float], unit: float, tone: tuple[int, ...]
) -> None:
    radius = unit * rng.uniform(110, 250)
    drawing.circle(at, radius, None, tone, 1 + int(unit * rng.uniform(1, 8)))


def _arrow(
    rng: np.random.Generator, drawing: ImageDraw.ImageDraw, at: tuple[float, float], unit: float, tone: tuple[int, ...]
) -> None:
    reach, stroke = unit * rng.uniform(60, 300), 1 + int(2 * unit)
    drawing.line([at, (at[0] + reach, at[1])], tone, stroke)
    head = [(at[0] + reach - 10 * unit, at[1] + side * 8 * unit) for side in (-1, 1)]
    drawing.line([head[0], (at[0] + reach, at[1]), head[1]], tone, stroke)


def _crossing_out(
    rng: np.random.Generator, drawing: ImageDraw.ImageDraw, at: tuple[float, float], unit: float, tone: tuple[int, ...]
) -> None:
    turns, step, tall = int(rng.integers(10, 30)), unit * rng.uniform(3, 8), unit * rng.uniform(10, 60)
    zigzag = [(at[0] + i * step, at[1] + tall * (i % 2) * rng.uniform(0.8, 1)) for i in range(turns)]
    drawing.line(zigzag, tone, 1 + int(unit * rng.uniform(1, 3)), joint="curve")


def _swatch(
    rng: np.random.Generator, drawing: ImageDraw.ImageDraw, at: tuple[float, float], unit: float, tone: tuple[int, ...]
) -> None:
    corner = (at[0] + unit * rng.uniform(20, 300), at[1] + unit * rng.uniform(20, 300))
    drawing.rounded_rectangle([at, corner], unit * 8, tone if rng.random() < 0.3 else None, tone, 1 + int(unit * 2))


FURNITURE = (_word, _word, _rule, _ring, _arrow, _crossing_out, _swatch)


def _photograph(rng: np.random.Generator, page: Image.Image) -> Image.Image:
    """Adds noise per channel, salt-and-pepper noise, or blur."""
    kind = rng.integers(4)
    if kind == 0:
        return page
    if kind == 1:
        return page.filter(ImageFilter.BoxBlur(rng.uniform(0.2, 0.8)))
    pixels = np.array(page)
    if kind == 2:
        grain = rng.standard_normal(pixels.shape, np.float32)
        grain *= rng.uniform(3, 16)
        grain += pixels
        return Image.fromarray(grain.clip(0, 255, out=grain).astype(np.uint8))
    speckle = rng.random(pixels.shape[:2]) < rng.uniform(0, 0.01)
    pixels[speckle] = rng.choice([0, 255], speckle.shape)[speckle, None]
    return Image.fromarray(pixels)
