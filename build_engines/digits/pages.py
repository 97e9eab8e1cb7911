"""Pages with scattered scikit-learn digits, and the bounding box of the ink and the class of each digit.

Training pages and held-out pages come from two generators that share only the source of the digits. This module
scatters training digits and draws with OpenCV; held_out_pages.py arranges held-out digits in rows, tables and loose
grids and draws with Pillow. So a detector's score on held-out pages does not depend on a learned page style.
"""

from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from build_engines.digits.scans import Digits, split
from clients._boxes import Letterbox

LETTERBOX = 640  # the detector's input; digit sizes are those after scaling a page to it
SMALLEST, LARGEST = 12, 150  # longer side of a digit's ink, in pixels of the letterbox
LEGIBLE = 10  # and at least this many pixels on the page itself: the scans have 8
INK = 0.4  # a pixel counts as ink from this opacity on

Canvas = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Page(NamedTuple):
    """A page in RGB, boxes [n,4] as xmin, ymin, xmax, ymax in its pixels, class ids [n]."""

    image: Image.Image
    boxes: Floats
    labels: NDArray[np.int64]


def training_pages(seed: int) -> Iterator[Page]:
    """Endless pages of training digits; the same seed gives the same pages."""
    digits, _ = split()
    rng = np.random.default_rng(seed)
    while True:
        yield training_page(rng, digits)


def training_page(rng: np.random.Generator, digits: Digits) -> Page:
    """One page: paper, panels and clutter, then up to 30 digits where the background is even."""
    width, height = page_size(rng, 240, 1400)
    canvas = _paper(rng, width, height)
    for _ in range(rng.integers(0, 13)):
        CLUTTER[rng.integers(len(CLUTTER))](rng, canvas)
    boxes, labels = _scatter(rng, canvas, digits)
    return Page(Image.fromarray(_scan(rng, canvas)), boxes, labels)


def letterboxed(page: Page) -> tuple[Canvas, Floats]:
    """The page in the detector's input [640,640,3] and its boxes there."""
    fit = Letterbox.fit(*page.image.size, LETTERBOX, LETTERBOX)
    return fit.apply(np.asarray(page.image)), fit.to_target(page.boxes).astype(np.float32)


def page_size(rng: np.random.Generator, low: int, high: int) -> tuple[int, int]:
    """(width, height): the longer side is log-uniform in [low, high], the shorter one at least a third of it."""
    longer = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    sides = [round(longer), round(longer * rng.uniform(0.34, 1.0))]
    rng.shuffle(sides)
    return sides[0], sides[1]


def ink_box(opacity: Floats) -> tuple[int, int, int, int]:
    """xmin, ymin, xmax, ymax of the pixels that are ink."""
    rows, columns = np.where((opacity > INK).any(1))[0], np.where((opacity > INK).any(0))[0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _colour(rng: np.random.Generator, level: float, tint: float) -> tuple[int, int, int]:
    red, green, blue = np.clip(level + rng.normal(0, tint, 3), 0, 255).astype(int).tolist()
    return red, green, blue


def _contrasting(rng: np.random.Generator, ground: float, least: float) -> float:
    """A darker or lighter grey level at least `least` away from the background, or as far as possible."""
    darker, lighter = max(ground - least, 0.0), max(255 - ground - least, 0.0)
    level = float(rng.uniform(0, darker + lighter))
    return level if level < darker else min(ground + least + level - darker, 255.0)


def _paper(rng: np.random.Generator, width: int, height: int) -> Canvas:
    """White, grey, tinted or dark paper, some with a gradient of light."""
    level = [rng.uniform(225, 255), rng.uniform(110, 235), rng.uniform(0, 110)][rng.choice(3, p=[0.4, 0.35, 0.25])]
    canvas = np.full((height, width, 3), _colour(rng, level, rng.choice([0, 2, 12])), np.uint8)
    if rng.random() < 0.4:
        slope = rng.uniform(-40, 40, 2)
        light = slope[0] * np.linspace(-1, 1, width)[None] + slope[1] * np.linspace(-1, 1, height)[:, None]
        canvas = np.clip(canvas + light[..., None], 0, 255).astype(np.uint8)
    return canvas


def _scatter(rng: np.random.Generator, canvas: Canvas, digits: Digits) -> tuple[Floats, NDArray[np.int64]]:
    """Draws digits into the canvas, without overlaps; half of them next to an earlier one."""
    images, labels = digits
    scale = LETTERBOX / max(canvas.shape[:2])
    smallest = max(SMALLEST, LEGIBLE * scale)
    usual = np.exp(rng.uniform(np.log(smallest), np.log(LARGEST)))
    boxes: list[tuple[float, ...]] = []
    classes: list[int] = []
    for _ in range(rng.integers(1, 31)):
        chosen = int(rng.integers(len(labels)))
        size = float(np.clip(usual * rng.lognormal(0, 0.35), smallest, LARGEST)) / scale
        opacity = _stamp(rng, images[chosen], size)
        place = _place(rng, canvas, opacity, boxes)
        if place is not None:
            _ink(rng, canvas, opacity, place)
            boxes.append(tuple(np.add(ink_box(opacity), place * 2)))
            classes.append(int(labels[chosen]))
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(classes, np.int64)


def _stamp(rng: np.random.Generator, digit: Canvas, size: float) -> Floats:
    """The digit's opacity 0-1, slightly rotated and sheared; the ink's longer side is about `size` pixels."""
    padded = np.pad(digit, 3).astype(np.float32) / 255
    side = round(size * rng.uniform(1.6, 1.85)) + 2
    turn, stretch = rng.normal(0, 0.12), rng.uniform(0.85, 1.15)
    cos, sin, zoom = np.cos(turn), np.sin(turn), side / 14
    linear = zoom * np.array([[stretch * cos, -sin + rng.normal(0, 0.08)], [stretch * sin, cos]])
    shift = np.array([side / 2, side / 2]) - linear @ [6.5, 6.5]
    matrix = np.concatenate([linear, shift[:, None]], 1)
    grey = cv2.warpAffine(padded, matrix, (side, side), flags=[cv2.INTER_LINEAR, cv2.INTER_CUBIC][rng.integers(2)])
    low, high = rng.uniform(0.15, 0.4), rng.uniform(0.6, 0.95)
    opacity: Floats = np.clip((grey - low) / (high - low), 0, 1)
    touched = np.argwhere(opacity > 0)
    (top, left), (bottom, right) = touched.min(0), touched.max(0) + 1
    return opacity[top:bottom, left:right]


def _place(
    rng: np.random.Generator, canvas: Canvas, opacity: Floats, boxes: list[tuple[float, ...]]
) -> tuple[int, int] | None:
    """The top left corner of a free spot on an even background, or None after 12 tries."""
    (height, width), (rows, columns) = opacity.shape, canvas.shape[:2]
    taken = np.array(boxes, np.float32).reshape(-1, 4)
    for _ in range(12):
        x, y = int(rng.uniform(0, max(columns - width, 1))), int(rng.uniform(0, max(rows - height, 1)))
        if len(taken) and rng.random() < 0.5:
            neighbour = taken[rng.integers(len(taken))]
            x = int(neighbour[2] + rng.uniform(0.02, 0.5) * width + 1)
            y = int(neighbour[1] + rng.normal(0, 0.15) * height)
        if x < 0 or y < 0 or x + width > columns or y + height > rows:
            continue
        apart = (taken[:, 0] >= x + width) | (taken[:, 2] <= x) | (taken[:, 1] >= y + height) | (taken[:, 3] <= y)
        if apart.all() and canvas[y : y + height, x : x + width, 1].std() < rng.uniform(10, 45):
            return x, y
    return None


def _ink(rng: np.random.Generator, canvas: Canvas, opacity: Floats, place: tuple[int, int]) -> None:
    x, y = place
    patch = canvas[y : y + opacity.shape[0], x : x + opacity.shape[1]]
    level = _contrasting(rng, float(patch.mean()), rng.uniform(70, 130))
    colour = np.array(_colour(rng, level, rng.choice([0, 25])), np.float32)
    patch[:] = (patch + opacity[..., None] * (colour - patch)).astype(np.uint8)


def _point(rng: np.random.Generator, canvas: Canvas) -> tuple[int, int]:
    return int(rng.integers(canvas.shape[1])), int(rng.integers(canvas.shape[0]))


def _pen(rng: np.random.Generator, canvas: Canvas) -> tuple[tuple[int, int, int], int]:
    """A colour and a stroke's width in pixels."""
    width = 1 + int(rng.uniform(0, 8) * max(canvas.shape[:2]) / LETTERBOX)
    return _colour(rng, rng.uniform(0, 255), 20), width


def _panel(rng: np.random.Generator, canvas: Canvas) -> None:
    """A filled rectangle; digits may lie inside."""
    cv2.rectangle(canvas, _point(rng, canvas), _point(rng, canvas), _pen(rng, canvas)[0], -1)


def _box(rng: np.random.Generator, canvas: Canvas) -> None:
    x, y = _point(rng, canvas)
    side = rng.uniform(0.03, 0.5, 2) * max(canvas.shape[:2])
    colour, width = _pen(rng, canvas)
    cv2.rectangle(canvas, (x, y), (x + int(side[0]), y + int(side[1])), colour, width, cv2.LINE_AA)


def _line(rng: np.random.Generator, canvas: Canvas) -> None:
    """A line across a random span, far longer than thick, so that it does not look like a 1."""
    angle, reach = rng.uniform(0, np.pi), rng.uniform(0.15, 1.0) * max(canvas.shape[:2])
    x, y = _point(rng, canvas)
    end = (int(x + reach * np.cos(angle)), int(y + reach * np.sin(angle)))
    cv2.line(canvas, (x, y), end, *_pen(rng, canvas), cv2.LINE_AA)


def _ruling(rng: np.random.Generator, canvas: Canvas) -> None:
    """Ruled or squared paper."""
    step, (colour, width) = int(rng.uniform(0.03, 0.15) * max(canvas.shape[:2])) + 4, _pen(rng, canvas)
    width = 1 + width // 4
    for y in range(int(rng.integers(step)), canvas.shape[0], step):
        canvas[y : y + width] = colour
    for x in range(int(rng.integers(step)), canvas.shape[1] if rng.random() < 0.5 else 0, step):
        canvas[:, x : x + width] = colour


def _blob(rng: np.random.Generator, canvas: Canvas) -> None:
    """Filled ellipses, from large ones to specks of dirt."""
    for _ in range(rng.integers(1, 12)):
        radius = np.exp(rng.uniform(np.log(1), np.log(0.08 * max(canvas.shape[:2]))))
        axes = (int(radius) + 1, int(radius * rng.uniform(0.4, 1)) + 1)
        turn = int(rng.integers(180))
        cv2.ellipse(canvas, _point(rng, canvas), axes, turn, 0, 360, _pen(rng, canvas)[0], -1, cv2.LINE_AA)


def _scribble(rng: np.random.Generator, canvas: Canvas) -> None:
    """A stroke with 6 to 20 random turns, more than any digit has."""
    size = np.exp(rng.uniform(np.log(10), np.log(200))) * max(canvas.shape[:2]) / LETTERBOX
    knots = np.array(_point(rng, canvas)) + rng.uniform(-size / 2, size / 2, (int(rng.integers(6, 21)), 2))
    colour, width = _pen(rng, canvas)
    width = min(width, 1 + int(size / 12))
    cv2.polylines(canvas, [knots.astype(np.int32)], rng.random() < 0.2, colour, width, cv2.LINE_AA)


def _letters(rng: np.random.Generator, canvas: Canvas) -> None:
    """Letters that no digit looks like."""
    text = "".join(rng.choice(list("AEFHKMNRTVWXYdefhkmnprtuvwxy#%&+=@?"), rng.integers(1, 7)))
    size = np.exp(rng.uniform(np.log(0.4), np.log(4))) * max(canvas.shape[:2]) / LETTERBOX
    font = int(rng.choice([cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_COMPLEX, cv2.FONT_HERSHEY_SCRIPT_SIMPLEX]))
    thick = 1 + int(size * rng.uniform(0.5, 4))
    cv2.putText(canvas, text, _point(rng, canvas), font, size, _pen(rng, canvas)[0], thick, cv2.LINE_AA)


CLUTTER = (_panel, _panel, _box, _line, _ruling, _blob, _scribble, _scribble, _letters, _letters)


def _scan(rng: np.random.Generator, canvas: Canvas) -> Canvas:
    """Adds blur, sensor noise (fine or coarse) and JPEG artefacts, each on some pages."""
    if rng.random() < 0.3:
        canvas = cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.3, 1.0))
    if rng.random() < 0.6:
        grain = [1, 1, 2, 3][rng.integers(4)]
        shape = (canvas.shape[0] // grain + 1, canvas.shape[1] // grain + 1)
        noise = rng.standard_normal(shape, np.float32) * rng.uniform(2, 22)
        noise = cv2.resize(noise, None, fx=grain, fy=grain)[: canvas.shape[0], : canvas.shape[1], None]
        canvas = np.clip(canvas + noise, 0, 255).astype(np.uint8)
    if rng.random() < 0.3:
        _, packed = cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(30, 95))])
        canvas = cv2.imdecode(packed, cv2.IMREAD_COLOR)
    return canvas
