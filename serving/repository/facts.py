"""What is known of the models before anything starts, as JSON between two processes. Standard library only.

`python -m serving.preparation.survey` reads the configurations and prints it; PID 1 reads no configuration itself.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelFacts:
    """A model that is loaded: the models that it calls, and its backend."""

    parts: tuple[str, ...] = ()
    backend: str = ""


@dataclass(frozen=True)
class Facts:
    """The repositories' final folders, the models that are loaded by name, the one of requests that name none ("":
    there is no such), and what the log should say.

    `engines` says which engines were chosen and why. A start ends with `mistakes`, those of the layout, or
    `unreadable`, those of configurations.
    """

    folders: tuple[str, ...] = ()
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    default: str = ""
    warnings: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Facts":
        found: dict[str, Any] = json.loads(text)
        lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
        models = {name: ModelFacts(**each | {"parts": tuple(each["parts"])}) for name, each in found["models"].items()}
        return cls(**found | lists | {"models": models})
