"""Pictures like photos of handwritten digits: one digit on one sheet, rendered from an 8×8 scan.

They are dark on light or light on dark, grey or coloured, with sides of 28 to 600 pixels. The digit is slightly rotated
and lies anywhere on the sheet; the light is uneven, with some blur and noise. All randomness comes from a numpy
Generator, so the same seed gives the same pictures. The network learns from `training`; the tests measure it on
`held_out`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from build_engines.digits.scans import split

Scan = NDArray[np.uint8]
Grey = NDArray[np.float32]
Rng = np.random.Generator

SIDES = (28, 600)  # pixels, shorter and longer side alike
MAX_ASPECT = 1.8  # longer side / shorter side
MAX_TURN = 15.0  # degrees, in each direction
DIGIT_SHARE = (0.4, 1.0)  # the digit's height as a share of the shorter side
MIN_CONTRAST = 90.0  # of 255, between the means of ink and paper
_MARGIN = 2  # zero pixels around the scan, so that interpolation fades out at its edge
_RESAMPLING = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
_HELD_OUT_SEED, _TRAINING_SEED = 1, 2


@dataclass(frozen=True)
class Placement:
    """The placement of the 8×8 scan on the sheet: `scale` in pixels per scan pixel, `centre` in pixels (x, y),
    `turn` and `shear` in radians."""

    scale: float
    centre: tuple[float, float]
    turn: float
    shear: float

    def inverse(self) -> tuple[float, float, float, float, float, float]:
        """Pillow's affine coefficients, from a pixel of the sheet to one of the scan with its margin."""
        cos, sin = np.cos(self.turn) / self.scale, np.sin(self.turn) / self.scale
        row_x = (cos + self.shear * sin, sin - self.shear * cos)
        row_y = (-sin, cos)
        x, y = self.centre
        middle = 4.0 + _MARGIN
        return (
            row_x[0],
            row_x[1],
            middle - row_x[0] * x - row_x[1] * y,
            row_y[0],
            row_y[1],
            middle - row_y[0] * x - row_y[1] * y,
        )


def held_out(count: int | None = None) -> list[tuple[Image.Image, int]]:
    """The held-out fifth (359 digits), or its first `count`, each rendered once, with its label."""
    scans, labels = split()[1]
    chosen = range(len(scans) if count is None else min(count, len(scans)))
    return [(render(scans[i], np.random.default_rng((_HELD_OUT_SEED, i))), int(labels[i])) for i in chosen]


def training(number: int) -> Iterator[tuple[Image.Image, int]]:
    """Every digit of the other four fifths (1,438), with its label, as rendered in that round."""
    scans, labels = split()[0]
    for i, scan in enumerate(scans):
        yield render(scan, np.random.default_rng((_TRAINING_SEED, number, i))), int(labels[i])


def render(scan: Scan, rng: Rng) -> Image.Image:
    """An 8×8 scan (uint8, ink bright) as an RGB photo of it."""
    size = _sheet_size(rng)
    ink = _ink(scan, size, _placement(size, rng), rng)
    return _photograph(_coloured(ink, rng), rng)


def _sheet_size(rng: Rng) -> tuple[int, int]:
    """(width, height), both within SIDES; sizes are uniform on a log scale."""
    side = np.exp(rng.uniform(*np.log(SIDES)))
    stretch = np.exp(rng.uniform(-0.5, 0.5) * np.log(MAX_ASPECT)) if rng.random() < 0.7 else 1.0
    width, height = np.clip([side * stretch, side / stretch], *SIDES).round().astype(int)
    return int(width), int(height)


def _placement(size: tuple[int, int], rng: Rng) -> Placement:
    """A random place, size and slight rotation; the digit, if it were upright, lies fully on the sheet."""
    height = rng.uniform(*DIGIT_SHARE) * min(size)
    centre = tuple(rng.uniform(height / 2, side - height / 2) for side in size)
    turn = np.radians(rng.uniform(-MAX_TURN, MAX_TURN))
    return Placement(height / 8, (centre[0], centre[1]), turn, rng.uniform(-0.1, 0.1))


def _ink(scan: Scan, size: tuple[int, int], placement: Placement, rng: Rng) -> Grey:
    """The ink on each pixel [height, width], 0 to 1; strokes are soft or crisp."""
    resample = rng.choice(len(_RESAMPLING), p=(0.15, 0.25, 0.6))
    source = Image.fromarray(np.pad(scan, _MARGIN))
    drawn = source.transform(size, Image.Transform.AFFINE, placement.inverse(), _RESAMPLING[resample])
    ink = np.asarray(drawn, dtype=np.float32) / 255
    hardness = rng.uniform(1, 6) if rng.random() < 0.5 else 1.0
    crisp: Grey = np.clip((ink - 0.45) * hardness + 0.45, 0, 1) if hardness > 1 else ink
    return crisp


def _coloured(ink: Grey, rng: Rng) -> Image.Image:
    """Ink of one colour on paper of another under uneven light."""
    dark = rng.uniform(0, 255 - MIN_CONTRAST)
    light = rng.uniform(dark + MIN_CONTRAST, 255)
    paper, stroke = (light, dark) if rng.random() < 0.5 else (dark, light)
    paper_rgb, stroke_rgb = _tinted(paper, rng), _tinted(stroke, rng)
    lighting = _lighting(ink.shape, rng)
    return _picture([(p + ink * (s - p)) * lighting for p, s in zip(paper_rgb, stroke_rgb, strict=True)])


def _tinted(grey: float, rng: Rng) -> Grey:
    """A colour near a grey, with no, little or much tint; keeps the mean if the range allows."""
    tint = rng.uniform(-1, 1, 3)
    strength = rng.choice((0.0, 12.0, 45.0))
    colour: Grey = np.clip(grey + strength * (tint - tint.mean()), 0, 255).astype(np.float32)
    return colour


def _lighting(shape: tuple[int, ...], rng: Rng) -> Grey:
    """Light that falls linearly across the sheet, by at most a fifth: [height, width]."""
    fall_y, fall_x = rng.uniform(-0.1, 0.1, 2)
    rows = np.linspace(-1, 1, shape[0], dtype=np.float32)[:, None]
    columns = np.linspace(-1, 1, shape[1], dtype=np.float32)[None]
    light: Grey = 1 + np.float32(fall_y) * rows + np.float32(fall_x) * columns
    return light


def _photograph(sharp: Image.Image, rng: Rng) -> Image.Image:
    """Adds the blur of a lens, then the noise of a sensor (sigma up to 10 of 255)."""
    radius = rng.uniform(0, 0.012) * min(sharp.size)
    blurred = sharp.filter(ImageFilter.GaussianBlur(radius)) if rng.random() < 0.5 else sharp
    if rng.random() < 0.3:
        return blurred
    noise = rng.standard_normal(blurred.size[::-1], dtype=np.float32) * rng.uniform(0, 10)
    return _picture([np.asarray(channel) + noise for channel in blurred.split()])


def _picture(channels: Sequence[Grey]) -> Image.Image:
    """Of red, green and blue, each [height, width]: arrays of three numbers per pixel take numpy twice as long."""
    return Image.merge("RGB", [Image.fromarray(channel.clip(0, 255).astype(np.uint8)) for channel in channels])
