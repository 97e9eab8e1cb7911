"""Determines how an image becomes a network's input. This depends on the input's shape and
datatype, and on SETTINGS, whose values are `parameters` in config.pbtxt (see the table in
docs/clients.md).

The network gets `(pixel · scale - mean) / std`, or the pixels themselves if its input is UINT8.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from clients.base import Floats, Parameter, TensorSpec, Values
from serving.codecs import decode_base64
from serving.errors import InvalidRequest

# the value of `resize` for which the size of the network's input depends on the image
KEEP_RATIO = "keep_ratio"
INTERPOLATIONS = {method.name.lower(): method for method in Image.Resampling}
FLOAT_TYPES = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
SETTINGS = (
    Parameter("size", (), "height and width in pixels, or one number for both", minimum=1),
    Parameter(
        "layout", "auto", "order of the input's dimensions", choices=("auto", "nchw", "nhwc")
    ),
    Parameter("channel_order", "rgb", "order of the channels", choices=("rgb", "bgr")),
    Parameter(
        "resize",
        "shortest",
        "how images are resized to size",
        choices=("shortest", "stretch", "pad", KEEP_RATIO),
    ),
    Parameter(
        "crop_pct",
        0.875,
        "with resize=shortest, share of the shorter side that is kept",
        minimum=0.01,
        maximum=1,
    ),
    Parameter(
        "resize_to",
        (),
        "shorter side, or height and width, before the centre is cropped",
        minimum=1,
    ),
    Parameter(
        "size_divisor", 1, "with resize=keep_ratio, both sides become multiples of this", minimum=1
    ),
    Parameter("exact", False, "match transformers' image processors exactly, but run slower"),
    Parameter("pad_value", 0, "grey level around a padded image", minimum=0, maximum=255),
    Parameter(
        "interpolation",
        "bilinear",
        "Pillow's resampling filter",
        choices=tuple(sorted(INTERPOLATIONS)),
    ),
    Parameter("scale", 1 / 255, "factor by which pixels are multiplied"),
    Parameter("mean", (0.485, 0.456, 0.406), "subtracted after scale"),
    Parameter(
        "std", (0.229, 0.224, 0.225), "divisor applied after mean is subtracted", minimum=1e-6
    ),
)
# SETTINGS for clients whose predictions cover the whole image: by default, nothing is cropped
WHOLE = tuple(
    replace(setting, default="stretch") if setting.name == "resize" else setting
    for setting in SETTINGS
)
EXAMPLE = decode_base64(  # a grey gradient, 8×8
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR42mNkEIAAJgGKGACO"
    "GAQAwSeVywAAAABJRU5ErkJggg=="
)
Size = tuple[int, int]  # height and width


@dataclass(frozen=True, eq=False)
class Frame:
    """Describes the network's input. `size` is (height, width), or (-1, -1) if it depends on the
    image.

    `own_batch` is true if the input's shape itself includes a batch dimension, as it may if
    max_batch_size is 0. An image is resized to `resized` before its centre is cropped to `size`.
    With the setting resize=shortest, the resized image covers `resized`, and may be longer on one
    side; with keep_ratio, `resized` is the shorter side and the limit of the longer one. Per
    channel, pixel · `gain` + `offset` is (pixel · scale - mean) / std.
    """

    size: Size
    channels: int
    channels_last: bool
    own_batch: bool
    resized: Size
    method: Image.Resampling
    gain: Floats
    offset: Floats
    dtype: Any


def keeps_ratio(settings: Values) -> bool:
    """Return whether resize=keep_ratio is set. The sizes of resized images then differ, so they
    cannot be batched."""
    return settings.get("resize") == KEEP_RATIO


def frame_of(spec: TensorSpec, options: Values, max_batch_size: int) -> Frame:
    """Return the frame that follows from the input and the settings. Raise InvalidRequest if they
    do not fit together."""
    own_batch = len(spec.shape) == 4
    shape = spec.shape[1:] if own_batch else spec.shape
    if len(shape) != 3 or spec.datatype not in {"UINT8", *FLOAT_TYPES}:
        raise InvalidRequest(
            f"input '{spec.name}' is {spec.datatype} {list(spec.shape)}; this client "
            "takes one image of UINT8, FP16, FP32 or FP64 as [channels, height, "
            "width] or [height, width, channels]"
        )
    channels_last = _channels_last(spec, shape, options["layout"])
    if channels_last:
        height, width, channels = shape
    else:
        channels, height, width = shape
    if channels not in (-1, 1, 3):
        raise InvalidRequest(f"input '{spec.name}' has {channels} channels; 1 and 3 are supported")
    if channels == -1:
        channels = 3
    size = _size(spec, (height, width), options)
    resized = _resized(size, options)
    if keeps_ratio(options) and max_batch_size > 1:
        raise InvalidRequest(
            f"parameter 'resize' is {KEEP_RATIO}, and images of different sizes cannot be "
            f"batched: max_batch_size is {max_batch_size}, and must be 1 or 0"
        )
    gain, offset = _normalization(spec, channels, channels_last, options)
    dtype = FLOAT_TYPES.get(spec.datatype, np.uint8)
    method = INTERPOLATIONS[options["interpolation"]]
    return Frame(size, channels, channels_last, own_batch, resized, method, gain, offset, dtype)


def check_whole(options: Values, frame: Frame) -> None:
    """Raise InvalidRequest unless the network gets exactly the whole image. With the setting
    `exact`, the image may also be cropped, as in transformers' pipelines, which stretch the
    prediction for the centre over the whole image."""
    stretches = options["resize"] == "stretch" and frame.resized == frame.size
    is_whole = keeps_ratio(options) or stretches
    may_be_cropped = options["exact"] and options["resize"] != "pad"
    if not is_whole and not may_be_cropped:
        raise InvalidRequest(
            f"parameter 'resize' ({options['resize']}) or 'resize_to' cuts or pads the "
            "image, and this client answers for the whole image: use --set resize=stretch "
            "without resize_to, or --set resize=keep_ratio"
        )


def _channels_last(spec: TensorSpec, shape: Sequence[int], layout: str) -> bool:
    """Return whether the last dimension of `shape` is that of the channels, rather than the first.
    Raise InvalidRequest if neither the setting `layout` nor the shape determines this."""
    if layout != "auto":
        return layout == "nhwc"
    if shape[0] in (1, 3):
        return False
    if shape[2] in (1, 3):
        return True
    raise InvalidRequest(
        f"input '{spec.name}' {list(spec.shape)} has no dimension of 1 or 3 for the channels; "
        f"set the parameter 'layout' to nchw or nhwc"
    )


def _size(spec: TensorSpec, shape: Size, options: Values) -> Size:
    """Return (height, width) from the setting `size`, which must match `shape`, the input's height
    and width, or else from `shape` alone; with keep_ratio, return (-1, -1). Raise InvalidRequest if
    they contradict each other, or do not determine the size."""
    setting = options["size"]
    if keeps_ratio(options):
        if setting or shape != (-1, -1):
            raise InvalidRequest(
                f"parameter 'resize' is {KEEP_RATIO}: it takes no 'size', and input "
                f"'{spec.name}' {list(spec.shape)} with a height and width of -1"
            )
        return shape
    if not setting:
        if min(shape) > 0:
            return shape
        raise InvalidRequest(
            f"input '{spec.name}' {list(spec.shape)} has a variable size: set the parameter "
            "'size' (--set size=224, or height and width: --set size=48,192), or 'resize' "
            f"to {KEEP_RATIO}"
        )
    size = _sides("size", setting)
    height, width = shape
    if height not in (-1, size[0]) or width not in (-1, size[1]):
        raise InvalidRequest(
            f"parameter 'size' is {size}, but input '{spec.name}' has the shape {list(spec.shape)}"
        )
    return size


def _resized(size: Size, options: Values) -> Size:
    """Return the size to which an image is resized before its centre is cropped to `size`
    (Frame.resized). Raise InvalidRequest if the setting `resize_to` is invalid."""
    sizes = options["resize_to"]
    if keeps_ratio(options):
        if len(sizes) != 2:
            raise InvalidRequest(
                f"parameter 'resize_to': {KEEP_RATIO} takes two numbers, the shorter side "
                "and the most that the longer one may be"
            )
        return (int(sizes[0]), int(sizes[1]))
    if not sizes:
        share = options["crop_pct"] if options["resize"] == "shortest" else 1
        height, width = size
        return (int(height / share), int(width / share))
    sides = _sides("resize_to", sizes)
    if sides[0] < size[0] or sides[1] < size[1] or options["resize"] == "pad":
        raise InvalidRequest(
            f"parameter 'resize_to': {sides} must be at least the size {size}, which is cut out of "
            "it; with pad nothing is cut"
        )
    return sides


def _sides(name: str, setting: tuple[float, ...]) -> Size:
    """Return (height, width) from the setting called `name`. Raise InvalidRequest unless it has one
    or two whole numbers."""
    if len(setting) > 2 or not all(side.is_integer() for side in setting):
        raise InvalidRequest(
            f"parameter '{name}': {setting} must be one or two whole numbers (height, width)"
        )
    return (int(setting[0]), int(setting[-1]))


def _normalization(
    spec: TensorSpec, channels: int, channels_last: bool, options: Values
) -> tuple[Floats, Floats]:
    """Return the gain and the offset with which the input is pixel * gain + offset. Raise
    InvalidRequest if `mean` or `std` has neither one value nor one per channel.

    A UINT8 input gets the pixels themselves. Its gain and offset are not used, so the number of
    values is not checked.
    """
    for name in ("mean", "std"):
        count = len(options[name])
        if spec.datatype != "UINT8" and count not in (1, channels):
            raise InvalidRequest(
                f"parameter '{name}' has {count} values, input '{spec.name}' has {channels} "
                "channel(s): give one value, or one per channel"
            )
    mean = np.asarray(options["mean"], np.float64)
    std = np.asarray(options["std"], np.float64)
    shape = (1, 1, -1) if channels_last else (-1, 1, 1)
    gain = (options["scale"] / std).astype(np.float32)
    offset = (-mean / std).astype(np.float32)
    return gain.reshape(shape), offset.reshape(shape)
