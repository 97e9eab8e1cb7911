"""Serves the models with BentoML: one service with two workers, and one API for each model."""

import os
from base64 import b64decode
from pathlib import Path
from typing import Any

import bentoml

from bench.work import BUNDLED, predict


@bentoml.service(workers=2, traffic={"timeout": 60})
class Models:
    """Answers {"body": BASE64} with {"prediction": …}."""

    def __init__(self) -> None:
        root = Path(os.environ["BENCH_REPOSITORY"])
        self.models = {name: kind(root / name) for name, kind in BUNDLED.items()}
        self.sessions = {name: model.session(2) for name, model in self.models.items()}

    @bentoml.api(route="/efficientnet")  # type: ignore[untyped-decorator]
    def efficientnet(self, body: str) -> dict[str, Any]:
        return self._predict("efficientnet", body)

    @bentoml.api(route="/yolov4_tiny")  # type: ignore[untyped-decorator]
    def yolov4_tiny(self, body: str) -> dict[str, Any]:
        return self._predict("yolov4_tiny", body)

    @bentoml.api(route="/bert")  # type: ignore[untyped-decorator]
    def bert(self, body: str) -> dict[str, Any]:
        return self._predict("bert", body)

    def _predict(self, name: str, body: str) -> dict[str, Any]:
        return {"prediction": predict(self.models[name], self.sessions[name], b64decode(body))}
