"""The scenarios: each is a row of SCENARIOS, data and one of the functions here.

`drive` runs one round of a scenario on one peer and returns a Sample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

from bench import workload
from bench.limit import Limit
from bench.load import Sample
from bench.servers import Server
from bench.workload import Workload

GENERAL = ("litserve", "bentoml", "rayserve", "mlserver")  # fronts for every model
EMBEDDING = ("infinity",)  # fronts for sentence embeddings alone
FRONTS = (*GENERAL, *EMBEDDING)  # as their tutorials run: ONNX Runtime
WITH_OPENVINO = tuple(f"{name}-openvino" for name in GENERAL)  # the same code with OpenVINO in the process
TOLD = ("ours-onnxruntime", "ours-openvino")  # of which one is what this project takes by itself
ALL = ("limit", "ours", "triton", *GENERAL)
ONE_CALLER = ("limit", "ours", *TOLD, "triton", *GENERAL)
SAME_ENGINE = (*ONE_CALLER, *WITH_OPENVINO)
TENSORS = ("sagemaker", "ours", "triton", *GENERAL)
OPEN_SHARE = 0.6  # an open loop's rate as a share of the limit's throughput


@dataclass(frozen=True)
class Scenario:
    """`works` makes the requests when they are needed. `quick`: bench-quick has the scenario too.

    `rate_of`, for an open loop, names the scenario whose throughput of the limit sets the rate.
    """

    name: str
    title: str
    works: Callable[[], tuple[Workload, ...]]
    drive: Callable[["Driven", tuple[Workload, ...], int], Sample]
    peers: tuple[str, ...] = ALL
    quick: bool = False
    rate_of: str = ""
    longer: int = 1  # factor for the seconds of a round, for slow requests

    @cached_property
    def models(self) -> frozenset[str]:
        """Those that it asks."""
        return frozenset(work.model for work in self.works())


@dataclass(frozen=True)
class Driven:
    """The server or the limit under load, and the rate of an open loop."""

    target: Server | Limit
    rate: float = 0.0

    @property
    def server(self) -> Server:
        if not isinstance(self.target, Server):
            raise TypeError("the limit does not support this scenario")
        return self.target


def closed(callers: int, driven: Driven, works: tuple[Workload, ...], seconds: int) -> Sample:
    """A closed loop: each caller has one request in flight."""
    return driven.target.closed(works[0], callers, seconds)


def patient(callers: int, driven: Driven, works: tuple[Workload, ...], seconds: int) -> Sample:
    """A closed loop for slow replies, where many of a round's requests are still running at its end."""
    if isinstance(driven.target, Limit):
        return driven.target.closed(works[0], callers, seconds)
    return driven.target.patient(works[0], callers, seconds)


def open_loop(driven: Driven, works: tuple[Workload, ...], seconds: int) -> Sample:
    """Sends requests at random times, whether or not earlier ones are answered."""
    return driven.server.open_loop(works[0], driven.rate, seconds)


def mix(driven: Driven, works: tuple[Workload, ...], seconds: int) -> Sample:
    """8 callers; of 13 requests, 8 go to the first model, 1 to the second and 4 to the third, the light one."""
    first, second, third = works
    deck = [first, third, first, first, third, first, first, second, third, first, first, third, first]
    decks = [deck[start:] + deck[:start] for start in range(8)]
    return driven.server.mixed(decks, third.model, seconds)


def saturated(driven: Driven, works: tuple[Workload, ...], seconds: int) -> Sample:
    """4 callers keep the heavy model busy; one calls the light one."""
    heavy, light = works
    return driven.server.mixed([[heavy]] * 4 + [[light]], light.model, seconds)


def _one(make: Callable[..., Workload], *arguments: object) -> Callable[[], tuple[Workload, ...]]:
    return lambda: (make(*arguments),)


def _closed(
    name: str,
    title: str,
    works: Callable[[], tuple[Workload, ...]],
    callers: int,
    quick: bool = False,
    peers: tuple[str, ...] = ALL,
    drive: Callable[..., Sample] = closed,
) -> Scenario:
    noun = "caller" if callers == 1 else "callers"
    return Scenario(
        name=f"{name}-{callers}",
        title=f"{title}, {callers} {noun}",
        works=works,
        drive=partial(drive, callers),
        peers=peers,
        quick=quick,
    )


def _int8(name: str, title: str, model: str) -> Scenario:
    return _closed(name, title, _one(workload.images, model), 8, peers=INT8, drive=patient)


RESNET = "ResNet-50, a JPEG of 768×576 in, five classes out"
YOLO = "YOLOv5n at 640, a JPEG of 768×576 in, boxes out"
SHORT_TEXT, LONG_TEXT = "Sentence embedding, 8 tokens", "Sentence embedding, 128 tokens"
SMALL, LARGE = "A tensor of 4 floats", "A tensor of 150,528 floats"
RESNET_WORK, YOLO_WORK = _one(workload.images, "resnet50"), _one(workload.images, "yolov5")
SHORT_WORK, LONG_WORK = _one(workload.text, 8), _one(workload.text, 128)
PIXELS = 3 * 224 * 224
INT8 = ("limit", "ours", "triton")
BINARY_PEERS = ("sagemaker", "ours", "triton")

SCENARIOS = (
    _closed("resnet50", RESNET, RESNET_WORK, 1, quick=True, peers=ONE_CALLER),
    _closed("resnet50", RESNET, RESNET_WORK, 8, quick=True, peers=SAME_ENGINE, drive=patient),
    Scenario(
        "images-25-1",
        "ResNet-50, 25 JPEGs of 320×240 in one request, 1 caller",
        _one(workload.images, "resnet50", 25, (320, 240)),
        partial(closed, 1),
        longer=4,
    ),
    Scenario(
        "photo-12mp-1",
        "ResNet-50, a JPEG of 12 megapixels, 1 caller",
        _one(workload.images, "resnet50", 1, workload.TWELVE_MEGAPIXELS),
        partial(closed, 1),
        ("limit", "ours", "triton"),
        longer=3,
    ),
    Scenario(
        "open",
        f"{RESNET}; open loop at {OPEN_SHARE:g} of the limit's throughput",
        RESNET_WORK,
        open_loop,
        ALL[1:],
        rate_of="resnet50-8",
    ),
    _int8("resnet50-int8", f"INT8 for ONNX Runtime: {RESNET}", "resnet50_int8"),
    _int8("resnet50-openvino-int8", f"INT8 for OpenVINO: {RESNET}", "resnet50_openvino_int8"),
    _int8("yolov5n-openvino-int8", f"INT8 for OpenVINO: {YOLO}", "yolov5_openvino_int8"),
    _closed("yolov5n", YOLO, YOLO_WORK, 1, peers=ONE_CALLER),
    _closed("yolov5n", YOLO, YOLO_WORK, 8, peers=SAME_ENGINE, drive=patient),
    _closed("text-8", SHORT_TEXT, SHORT_WORK, 1, peers=(*ONE_CALLER, *EMBEDDING)),
    _closed("text-8", SHORT_TEXT, SHORT_WORK, 16, quick=True, peers=(*SAME_ENGINE, *EMBEDDING)),
    _closed("text-128", LONG_TEXT, LONG_WORK, 1, peers=(*ONE_CALLER, *EMBEDDING)),
    _closed("text-128", LONG_TEXT, LONG_WORK, 16, peers=(*SAME_ENGINE, *EMBEDDING), drive=patient),
    _closed("floats-4-json", f"{SMALL}, JSON", _one(workload.tensor, 4), 8, quick=True, peers=TENSORS),
    _closed("floats-4-binary", f"{SMALL}, binary", _one(workload.tensor, 4, True), 8, peers=BINARY_PEERS),
    _closed("floats-150k-json", f"{LARGE}, JSON", _one(workload.tensor, PIXELS), 8, False, TENSORS),
    _closed("floats-150k-binary", f"{LARGE}, binary", _one(workload.tensor, PIXELS, True), 8, True, BINARY_PEERS),
    Scenario(
        "mix",
        "ResNet-50, YOLOv5n and short texts as 8 : 1 : 4, 8 callers",
        lambda: (*RESNET_WORK(), *YOLO_WORK(), *SHORT_WORK()),
        mix,
        ALL[1:],
    ),
    Scenario(
        "saturated",
        "Short texts, 1 caller, while 4 callers keep YOLOv5n busy",
        lambda: (*YOLO_WORK(), *SHORT_WORK()),
        saturated,
        ("ours", "triton"),
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass
class Scope:
    """What a run covers; `tiny` is what the tests run."""

    scenarios: tuple[Scenario, ...]
    peers: tuple[str, ...]
    rounds: int
    seconds: int
    starts: int
    archives: int
    calls: int
    bundled: tuple[str, ...] = ("resnet", "yolov5", "bert")

    def groups(self) -> list[tuple[Scenario, ...]]:
        """Neighbours that ask the same models: their servers run at the same time, with no other model."""
        return [tuple(group) for _, group in groupby(self.scenarios, key=lambda scenario: scenario.models)]


EVERYONE = ("limit", "ours", *TOLD, "triton", "sagemaker", *FRONTS, *WITH_OPENVINO)
FULL_MODELS = ("resnet50", "yolov5", "bert", "mean")
FULL = Scope(SCENARIOS, EVERYONE, rounds=3, seconds=1, starts=2, archives=100, calls=200)
QUICK_PEERS = tuple(name for name in EVERYONE if name not in WITH_OPENVINO)
QUICK = Scope(tuple(s for s in SCENARIOS if s.quick), QUICK_PEERS, rounds=2, seconds=1, starts=1, archives=0, calls=0)
TINY = Scope(
    tuple(BY_NAME[name] for name in ("text-8-1", "floats-4-json-8")),
    ("limit", "ours", "triton"),
    rounds=1,
    seconds=1,
    starts=0,
    archives=0,
    calls=0,
    bundled=(),
)
