"""Draws detections on a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageColor, ImageDraw, ImageFont

Colour = tuple[int, int, int]
MASK_OPACITY = 110  # out of 255
# The maximum width of a stroke in pixels, which images of 120 megapixels reach. Letters are six
# strokes high.
WIDEST_STROKE = 32
VISIBLE_SCORE = 0.5  # keypoints with a lower score are not drawn


def draw(image: Image.Image, detections: Sequence[Mapping[str, Any]]) -> Image.Image:
    """Return a copy of the image with the frame, label, score, mask and keypoints of each
    detection, in a colour for each class."""
    picture = image.copy()
    mask_drawing = ImageDraw.Draw(picture, "RGBA")
    drawing = ImageDraw.Draw(picture)
    usual_stroke = round(sum(picture.size) * 0.0015)
    stroke = min(max(usual_stroke, 2), WIDEST_STROKE)
    worst_first = detections[::-1]  # so that the best detections are on top
    for detection in worst_first:
        colour = class_colour(detection["class_id"])
        for polygon in detection.get("polygons", ()):
            mask_drawing.polygon(polygon, fill=(*colour, MASK_OPACITY))
    for detection in worst_first:
        _draw_frame(drawing, picture.width, detection, stroke)
        colour = class_colour(detection["class_id"])
        for point in detection.get("keypoints", ()):
            if point.get("score", 1) >= VISIBLE_SCORE:
                centre = (point["x"], point["y"])
                drawing.circle(centre, 2 * stroke, colour, "white")
    return picture


def _draw_frame(
    drawing: ImageDraw.ImageDraw, picture_width: int, detection: Mapping[str, Any], stroke: int
) -> None:
    """Draw a box, and its label above it, or in it if there is no room above."""
    x0, y0, x1, y1 = detection["box"].values()
    # a network may return swapped corners
    left, right = sorted((x0, x1))
    top, bottom = sorted((y0, y1))
    colour = class_colour(detection["class_id"])
    font = ImageFont.load_default(max(stroke * 6, 11))
    drawing.rectangle((left, top, right, bottom), outline=colour, width=stroke)
    text = f"{detection['label']} {detection['score']:.2f}"
    _, _, text_width, text_height = drawing.textbbox((0, 0), text, font)
    width = text_width + 4
    height = text_height + 4
    x = max(min(left, picture_width - width), 0)
    y = top - height if top >= height else top
    drawing.rectangle((x, y, x + width, y + height), fill=colour)
    corner = (x + 2, y + 1)
    drawing.text(corner, text, "white", font, stroke_width=1, stroke_fill="black")


def class_colour(class_id: int) -> Colour:
    """Return a vivid colour for the class. The hues of consecutive class ids are a golden angle
    apart, so their colours are easy to distinguish."""
    hue = class_id * 0.618034 % 1
    red, green, blue, *_ = ImageColor.getrgb(f"hsv({360 * hue:.2f}, 85%, 90%)")
    return red, green, blue
