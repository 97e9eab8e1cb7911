"""Clients of one image: how it becomes the network's input, by settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.base import Model, ModelClient, Parameter, Tensors, TensorSpec
from serving.codecs import IMAGE, decode_base64
from serving.errors import DecodingError, InferenceFailed, InvalidRequest

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # height, width
Box = tuple[float, float, float, float]

KEEP_RATIO = "keep_ratio"  # the resize that gives each image a size of its own
INEXACT, TORCHVISION, TRANSFORMERS = EXACT = ("false", "true", "transformers")  # the setting `exact`
RIBBON = 16  # longer side / shorter side; to resize such an image before cropping would take gigabytes
STEPS = ("nearest", "box")  # the interpolations that jump: where rounding differs, so does a pixel
INTERPOLATIONS = {method.name.lower(): method for method in Image.Resampling}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # RGB, of 1 (torchvision)
DEFAULT_LABELS = "labels.txt"
FLOAT_TYPES = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
EXAMPLE = decode_base64(  # a grey gradient, 8×8
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR42mNkEIAAJgGKGACOGAQAwSeVywAAAABJRU5ErkJggg=="
)

# A JPEG may be decoded at a smaller size, but at no less than this factor times the size that it is resized to: 12
# megapixels (4000×3000) are decoded at an eighth for 224. A larger factor changes the pixels less.
AMPLE = 1.4


class ImageClient(ModelClient):
    """A model whose first input is one image.

    The settings of the input, set by `parameters` in config.pbtxt:

    | Setting | Default | Meaning |
    |---|---|---|
    | `size` | from the input's shape | height and width of the network's input, "224" or "224,320"; not for keep_ratio |
    | `layout` | from the input's shape | nchw or nhwc; auto: the dimension of 1 or 3 is the channels |
    | `channel_order` | rgb | rgb or bgr; an input with one channel gets the image in grey |
    | `resize` | shortest | shortest: cover size / crop_pct, then crop the centre; stretch: to size, without keeping the proportions; pad: fit inside size and fill the rest; keep_ratio: each image keeps its proportions, for an input of variable height and width that takes one image at a time |
    | `crop_pct` | 0.875 | for shortest: the share of the resized shorter side that is kept |
    | `resize_to` | from size and crop_pct | what the image is resized to before its centre is cut out: the shorter side for shortest, height and width for stretch; for keep_ratio "800,1333" is the shorter side, and the most that the longer one may be, where else the shorter one is less |
    | `size_divisor` | 1 | for keep_ratio: both sides are cut down to multiples of it |
    | `exact` | false | true: each pixel is what torchvision makes of the image (Resize, CenterCrop); transformers: what transformers makes of it, whose cut may begin a pixel earlier; false: large JPEGs are decoded at a smaller size, and only what the cut keeps is resized |
    | `pad_value` | 0 | for pad: the grey level (0 to 255) around the image |
    | `interpolation` | bilinear | nearest, box, bilinear, hamming, bicubic or lanczos, as in Pillow |
    | `scale` | 1/255 | factor for the pixels (0 to 255), applied before mean and std |
    | `mean` | 0.485,0.456,0.406 | subtracted per channel, in the input's channel order; one value for all channels is allowed |
    | `std` | 0.229,0.224,0.225 | divides each channel; like mean |

    The network gets `(pixel · scale - mean) / std`, or the pixels themselves when its input is UINT8.
    The client uses the model's first input, whatever its name.
    """  # noqa: E501

    codec = IMAGE
    answers_in_pixels: ClassVar[bool] = False  # of the image as it was sent: it is decoded at its full size
    settings: ClassVar[tuple[Parameter, ...]] = (
        Parameter("size", (), "height and width in pixels, or one number for both", minimum=1),
        Parameter("layout", "auto", "order of the input's dimensions", choices=("auto", "nchw", "nhwc")),
        Parameter("channel_order", "rgb", "order of the channels", choices=("rgb", "bgr")),
        Parameter("resize", "shortest", "how to resize to size", choices=("shortest", "stretch", "pad", KEEP_RATIO)),
        Parameter("crop_pct", 0.875, "share of the shorter side that shortest keeps", minimum=0.01, maximum=1),
        Parameter("resize_to", (), "shorter side, or height and width, before the centre is cut out", minimum=1),
        Parameter("size_divisor", 1, "both sides of keep_ratio are multiples of it", minimum=1),
        Parameter("exact", INEXACT, "torchvision's pixels (true) or transformers', at the cost of time", choices=EXACT),
        Parameter("pad_value", 0, "grey level around a padded image", minimum=0, maximum=255),
        Parameter("interpolation", "bilinear", "Pillow's filter", choices=tuple(sorted(INTERPOLATIONS))),
        Parameter("scale", 1 / 255, "factor for the pixels"),
        Parameter("mean", IMAGENET_MEAN, "subtracted after scale"),
        Parameter("std", IMAGENET_STD, "divides after mean", minimum=1e-6),
    )

    def __init__(self, model: Model) -> None:
        """Raises InvalidRequest when shape and settings do not fit together, OSError when a file is missing that a
        setting names."""
        super().__init__(model)
        self.example, self.input = EXAMPLE, model.inputs[0]
        self.frame = _frame(self.input, self.options)
        self.resized = _resized(self.frame.size, self.options)
        if self.keeps_ratio and model.max_batch_size > 1:
            raise InvalidRequest(
                f"parameter 'resize' is {KEEP_RATIO}, and images of different sizes make no batch: max_batch_size is "
                f"{model.max_batch_size}, and must be 1 or 0"
            )
        self.side = 0 if self.options["exact"] != INEXACT or self.answers_in_pixels else int(AMPLE * max(self.resized))
        self.gain, self.offset = self._normalization()

    @property
    def keeps_ratio(self) -> bool:
        """Return whether each image keeps a size of its own."""
        return keeps_ratio(self.options)

    def preprocess(self, instances: Sequence[Image.Image]) -> Tensors:
        """n RGB images -> the input [n, *its shape]; DecodingError for one too narrow for keep_ratio."""
        return {self.input.name: self.normalize(np.stack([self.fit(image) for image in instances]))}

    def fit(self, image: Image.Image) -> Pixels:
        """An RGB image -> pixels [height, width, channels] in the network's size and channel order."""
        image = image.convert("L") if self.frame.channels == 1 else image
        options = {**self.options, "resize_to": self.resized}
        resized = RESIZE[self.options["resize"]](image, self.frame.size, options)
        pixels: Pixels = np.atleast_3d(np.asarray(resized))
        return pixels[..., ::-1] if self.options["channel_order"] == "bgr" else pixels

    def normalize(self, pixels: Pixels) -> NDArray[Any]:
        """[n, height, width, channels] uint8 -> the input's datatype and layout, [n, *its shape]."""
        ordered = pixels if self.frame.channels_last else pixels.transpose(0, 3, 1, 2)
        if self.input.datatype == "UINT8":
            values: NDArray[Any] = np.ascontiguousarray(ordered)
        else:
            values = np.empty(ordered.shape, np.float32)
            np.multiply(ordered, self.gain, out=values)
            values += self.offset
            values = values.astype(FLOAT_TYPES[self.input.datatype], copy=False)
        return values[:, None] if self.frame.own_batch else values

    def _normalization(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(gain, offset) per channel, so that pixel · gain + offset = (pixel · scale - mean) / std."""
        mean, std = self._per_channel("mean"), self._per_channel("std")
        shape = (1, 1, -1) if self.frame.channels_last else (-1, 1, 1)
        gain, offset = self.options["scale"] / std, -mean / std
        return gain.astype(np.float32).reshape(shape), offset.astype(np.float32).reshape(shape)

    def _per_channel(self, name: str) -> NDArray[np.float64]:
        values, channels = self.options[name], self.frame.channels
        if self.input.datatype != "UINT8" and len(values) not in (1, channels):
            raise InvalidRequest(
                f"parameter '{name}' has {len(values)} values, input '{self.input.name}' has {channels} "
                f"channel{'s' if channels > 1 else ''}: give one value, or one per channel"
            )
        return np.asarray(values, np.float64)

    def finite(self, outputs: Tensors, name: str) -> NDArray[np.float32]:
        """Return an output as FP32. Raise InferenceFailed when it is not finite."""
        values: NDArray[np.float32] = outputs[name].astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise InferenceFailed(f"output '{name}' of model '{self.model.name}' is not finite")
        return values

    def of_each(self, outputs: Tensors, name: str) -> NDArray[np.float32]:
        """Return the same with one row for each image, also if the network has a batch dimension of its own."""
        values = self.finite(outputs, name)
        return values[:, 0] if self.frame.own_batch and values.shape[1:2] == (1,) else values


LABELS = Parameter("labels", DEFAULT_LABELS, "file of labels in the model's folder")


@dataclass(frozen=True)
class Frame:
    """The form of the network's input: `size` is (height, width), (-1, -1) where each image has one of its own.

    `own_batch`: the model's shape includes a batch dimension, but max_batch_size is 0.
    """

    size: tuple[int, int]
    channels: int
    channels_last: bool
    own_batch: bool


def _frame(spec: TensorSpec, options: Mapping[str, Any]) -> Frame:
    """Return the frame that the input's shape and the settings `layout` and `size` give."""
    shape = spec.shape[1:] if len(spec.shape) == 4 else spec.shape
    if len(shape) != 3 or spec.datatype not in {"UINT8", *FLOAT_TYPES}:
        raise InvalidRequest(
            f"input '{spec.name}' is {spec.datatype} {list(spec.shape)}; an image classifier takes one image of "
            f"UINT8, FP16, FP32 or FP64 as [channels, height, width] or [height, width, channels]"
        )
    channels_last = _channels_last(spec, shape, options["layout"])
    channels, height, width = (shape[2], *shape[:2]) if channels_last else shape
    if channels not in (-1, 1, 3):
        raise InvalidRequest(f"input '{spec.name}' has {channels} channels; 1 and 3 are supported")
    size = _size(spec, (height, width), options)
    return Frame(size, 3 if channels == -1 else channels, channels_last, len(spec.shape) == 4)


def _channels_last(spec: TensorSpec, shape: Sequence[int], layout: str) -> bool:
    if layout != "auto":
        return layout == "nhwc"
    if shape[0] in (1, 3) or shape[2] in (1, 3):
        return shape[0] not in (1, 3)
    raise InvalidRequest(
        f"input '{spec.name}' {list(spec.shape)} has no dimension of 1 or 3 for the channels; "
        f"set the parameter 'layout' to nchw or nhwc"
    )


def _size(spec: TensorSpec, shape: tuple[int, int], options: Mapping[str, Any]) -> tuple[int, int]:
    """Return (height, width) from the setting, checked against the shape, or from the shape alone."""
    given = options["size"]
    if keeps_ratio(options):
        if given or shape != (-1, -1):
            raise InvalidRequest(
                f"parameter 'resize' is {KEEP_RATIO}: it takes no 'size', and input '{spec.name}' {list(spec.shape)} "
                "with a height and width of -1"
            )
        return shape
    if not given:
        if min(shape) > 0:
            return shape
        raise InvalidRequest(
            f"input '{spec.name}' {list(spec.shape)} has a variable size: set the parameter 'size' (--set "
            f"size=224, or height and width: --set size=48,192), or 'resize' to {KEEP_RATIO}"
        )
    if len(given) > 2 or any(not side.is_integer() for side in given):
        raise InvalidRequest(f"parameter 'size': {given} must be one or two whole numbers (height, width)")
    size = (int(given[0]), int(given[-1]))
    if any(side not in (-1, wanted) for side, wanted in zip(shape, size, strict=True)):
        raise InvalidRequest(f"parameter 'size' is {size}, but input '{spec.name}' has the shape {list(spec.shape)}")
    return size


def _resized(size: tuple[int, int], options: Mapping[str, Any]) -> tuple[int, int]:
    """What the image is resized to, before the centre of `size` is cut out of it; for shortest it covers this, and for
    keep_ratio these are the shorter side and the most of the longer one."""
    given = options["resize_to"]
    if keeps_ratio(options):
        if len(given) != 2:
            raise InvalidRequest(
                f"parameter 'resize_to': {KEEP_RATIO} takes two numbers, the shorter side and the most that the longer "
                "one may be"
            )
        return (int(given[0]), int(given[1]))
    if not given:
        share = options["crop_pct"] if options["resize"] == "shortest" else 1
        return (int(size[0] / share), int(size[1] / share))
    found = (int(given[0]), int(given[-1]))
    if len(given) > 2 or found[0] < size[0] or found[1] < size[1] or options["resize"] == "pad":
        raise InvalidRequest(
            f"parameter 'resize_to': {given} must be one or two numbers, at least the size {size} that is cut out of it"
        )
    return found


# How an image gets its size: one function for each value of the setting `resize`.


def keeps_ratio(settings: Mapping[str, Any]) -> bool:
    """Return whether each image keeps its proportions, so its size differs from others': no batch."""
    return settings.get("resize") == KEEP_RATIO


def _shortest(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    """Cover `resize_to`, then crop the centre: the rule of torchvision and transformers for ImageNet."""
    height, width = options["resize_to"]
    if width * image.height >= height * image.width:
        covering = (width * image.height // image.width, width)
    else:
        covering = (height, height * image.width // image.height)
    cut = _centre(covering, size, options)
    whole = options["exact"] != INEXACT or options["interpolation"] in STEPS
    if not whole or max(covering[0] / height, covering[1] / width) > RIBBON:
        return _resample(image, size, options, _source_box(image, covering, cut))
    return _resample(image, covering, options).crop(cut)


def _centre(outer: Size, size: Size, options: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the box of the centre. torchvision rounds half a pixel to the even one, transformers rounds it down."""
    margins = [long - side for long, side in zip(outer, size, strict=True)]
    top, left = (round(each / 2) if options["exact"] == TORCHVISION else each // 2 for each in margins)
    return (left, top, left + size[1], top + size[0])


def _source_box(image: Image.Image, covering: Size, cut: tuple[int, int, int, int]) -> Box:
    """Return the box in the original image that becomes `cut` of the resized one, so that Pillow computes only the cut:
    two thirds of the time. Its rounding then differs by less than torchvision's two ways do."""
    x, y = image.width / covering[1], image.height / covering[0]
    return (cut[0] * x, cut[1] * y, min(cut[2] * x, image.width), min(cut[3] * y, image.height))


def _stretch(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    return _resample(image, options["resize_to"], options).crop(_centre(options["resize_to"], size, options))


def _pad(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    """Put the whole image, as large as fits, in the middle of a grey background."""
    factor = min(size[0] / image.height, size[1] / image.width)
    height, width = (max(1, round(side * factor)) for side in (image.height, image.width))
    level = options["pad_value"]
    sheet = Image.new(image.mode, size[::-1], level if image.mode == "L" else (level,) * 3)
    sheet.paste(_resample(image, (height, width), options), ((size[1] - width) // 2, (size[0] - height) // 2))
    return sheet


def _keep_ratio(image: Image.Image, size: Size, options: Mapping[str, Any]) -> Image.Image:
    """Resize the whole image. Raise DecodingError if a side would have no pixels."""
    (shorter, longer), divisor = options["resize_to"], options["size_divisor"]
    kept = kept_ratio(image.height, image.width, shorter, longer, divisor)
    if min(kept) < 1:
        raise DecodingError(
            f"the image of {image.width}×{image.height} pixels is too narrow: with its longer side at {longer} the "
            f"shorter one would be less than {divisor}; cut it to pieces"
        )
    return _resample(image, kept, options)


def kept_ratio(height: int, width: int, shorter: int, longer: int, divisor: int) -> Size:
    """Return the size that transformers gives such an image: get_size_with_aspect_ratio, for YOLOS …_yolos."""
    least, share = min(height, width), float(shorter)
    if max(height, width) / least * shorter > longer:
        share = longer * float(least) / max(height, width)
        shorter = round(share)
    if least == shorter and (divisor == 1 or height <= width):  # the order of YOLOS' rule is another
        size = (height, width)
    elif width < height:
        size = (int(share * height / width), shorter)
    else:
        size = (shorter, int(share * width / height))
    return (size[0] - size[0] % divisor, size[1] - size[1] % divisor)


def _resample(image: Image.Image, size: Size, options: Mapping[str, Any], box: Box | None = None) -> Image.Image:
    return image.resize(size[::-1], INTERPOLATIONS[options["interpolation"]], box=box)


RESIZE: dict[str, Callable[[Image.Image, Size, Mapping[str, Any]], Image.Image]] = {
    "shortest": _shortest,
    "stretch": _stretch,
    "pad": _pad,
    KEEP_RATIO: _keep_ratio,
}
