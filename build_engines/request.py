"""What the command line asks to be built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from build_engines.recipes import RECIPES, Recipe

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repository"
PRECISIONS = ("auto", "fp32", "fp16", "int8")
TARGETS = ("auto", "cpu", "openvino", "gpu", "tensorrt")


@dataclass(frozen=True)
class ServingOptions:
    """How Triton is to run the model. 0, "" and () leave a choice to the family, or to Triton.

    `queue_delay` is in microseconds; `versions` is "latest:N", "all" or numbers separated by commas; `sequence_idle`
    is in seconds.
    """

    instances: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    queue_delay: int = 0
    warm_up: bool = False
    response_cache: bool = False
    versions: str = ""
    sequence_idle: float = 0.0


@dataclass(frozen=True)
class Request:
    """What is to be built. `target` is one of TARGETS; `name` is the model's folder, "" for the usual one.

    `boxes` is how many leave a detector's network, 0 for all and -1 for the usual number; `calibration` is a folder of
    images, or a file of texts, for INT8; `tokenizer` is the folder that an ONNX file of texts goes with; `settings` are
    the client's. The fields' names stand in build.json: a build whose record has others is made again.
    """

    model: str
    weights: str = ""
    precision: str = "fp32"
    target: str = "cpu"
    repository: Path = REPOSITORY
    name: str = ""
    client: str = ""
    task: str = ""
    labels: Path | None = None
    calibration: Path | None = None
    tokenizer: Path | None = None
    max_batch_size: int = -1
    size: int = 0
    boxes: int = -1
    inputs: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    allow_pickle: bool = False
    serving: ServingOptions = field(default_factory=ServingOptions)

    @property
    def recipe(self) -> Recipe | None:
        """None for a model of the user's own."""
        return RECIPES.get(self.model)

    @property
    def source(self) -> str:
        """The weights, the recipe's default where none are named."""
        return self.weights or (self.recipe.weights[0] if self.recipe else "")
