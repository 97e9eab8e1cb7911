"""Draws detections on a picture."""

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
VEIL = 110  # opacity of a mask, out of 255
WIDEST_STROKE = 32  # pixels, reached at 120 megapixels; letters are six times as high
SEEN = 0.5  # keypoints with a lower score are not drawn


def draw(image: Image.Image, detections: Sequence[Mapping[str, Any]]) -> Image.Image:
    """Return a copy of the image with the frame, label, score, mask and keypoints of each
    detection, in a colour for each class."""
    picture = image.copy()
    usual = round(sum(picture.size) * 0.0015)
    stroke = min(max(usual, 2), WIDEST_STROKE)
    if any(detection.get("polygons") for detection in detections):
        _draw_masks(picture, detections)
    drawing = ImageDraw.Draw(picture)
    for detection in reversed(detections):  # so that the best is on top
        _draw_frame(drawing, picture.width, detection, stroke)
        for point in detection.get("keypoints", ()):
            if point.get("score", 1) >= SEEN:
                drawing.circle(
                    (point["x"], point["y"]),
                    2 * stroke,
                    class_colour(detection["class_id"]),
                    "white",
                )
    return picture


def _draw_masks(picture: Image.Image, detections: Sequence[Mapping[str, Any]]) -> None:
    drawing = ImageDraw.Draw(picture, "RGBA")
    for detection in reversed(detections):
        for polygon in detection["polygons"]:
            drawing.polygon(polygon, fill=(*class_colour(detection["class_id"]), VEIL))


def _draw_frame(
    drawing: ImageDraw.ImageDraw, right: int, detection: Mapping[str, Any], stroke: int
) -> None:
    x0, y0, x1, y1 = detection["box"].values()
    # a network may swap corners
    left, right_edge = sorted((x0, x1))
    top, bottom = sorted((y0, y1))
    colour = class_colour(detection["class_id"])
    font = ImageFont.load_default(max(stroke * 6, 11))
    drawing.rectangle((left, top, right_edge, bottom), outline=colour, width=stroke)
    text = f"{detection['label']} {detection['score']:.2f}"
    _, _, width, height = drawing.textbbox((0, 0), text, font)
    width += 4
    height += 4
    x = max(min(left, right - width), 0)
    y = top - height if top >= height else top
    drawing.rectangle((x, y, x + width, y + height), fill=colour)
    corner = (x + 2, y + 1)
    drawing.text(corner, text, _ink(colour), font)


def class_colour(class_id: int) -> Colour:
    """Return a strong colour for the class. Hues of successive class ids are a golden angle apart,
    so that neighboring classes differ."""
    hue = class_id * 0.618034 % 1
    parts = colorsys.hsv_to_rgb(hue, 0.85, 0.9)
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def _ink(ground: Colour) -> Colour:
    """Return black or white, whichever is easier to read (luma of ITU-R BT.601)."""
    red, green, blue = ground
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return (0, 0, 0) if luma > 128 else (255, 255, 255)
