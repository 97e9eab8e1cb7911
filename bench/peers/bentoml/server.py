"""BentoML: one service of several workers, an API per model; adaptive batching where it helps."""

import os
from typing import Any

import bentoml

from bench.subject import predict_requests, subjects

WORKERS = 2


@bentoml.service(workers=WORKERS, traffic={"timeout": 60}, http={"port": int(os.environ.get("BENCH_PORT", "3000"))})
class Models:
    """{"instances": […]} -> {"predictions": […]}."""

    def __init__(self) -> None:
        self.subjects = subjects()

    @bentoml.api(route="/resnet50")  # type: ignore[untyped-decorator]
    def resnet50(self, instances: list[dict[str, str]]) -> dict[str, Any]:
        return self._predict("resnet50", instances)

    @bentoml.api(route="/resnet50_int8")  # type: ignore[untyped-decorator]
    def resnet50_int8(self, instances: list[dict[str, str]]) -> dict[str, Any]:
        return self._predict("resnet50_int8", instances)

    @bentoml.api(route="/resnet")  # type: ignore[untyped-decorator]
    def resnet(self, instances: list[dict[str, str]]) -> dict[str, Any]:
        return self._predict("resnet", instances)

    @bentoml.api(route="/yolov5")  # type: ignore[untyped-decorator]
    def yolov5(self, instances: list[dict[str, str]]) -> dict[str, Any]:
        return self._predict("yolov5", instances)

    @bentoml.api(route="/bert", batchable=True, max_batch_size=16, max_latency_ms=1000)  # type: ignore[untyped-decorator]
    def bert(self, instances: list[str]) -> list[dict[str, Any]]:
        return [{"predictions": found} for found in predict_requests(self.subjects["bert"], [[t] for t in instances])]

    @bentoml.api(route="/mean")  # type: ignore[untyped-decorator]
    def mean(self, instances: list[list[float]]) -> dict[str, Any]:
        return self._predict("mean", instances)

    def _predict(self, name: str, instances: list[Any]) -> dict[str, Any]:
        return {"predictions": self.subjects[name].predict_json(instances)}
