"""Ray Serve: an application per model with two replicas each, on a Ray cluster on this machine."""

import json
import os
import signal
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from bench.subject import names, predict_requests, subjects

REPLICAS = 2
WAITING = 64  # requests that a replica may have at once; more are queued before it


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=WAITING, ray_actor_options={"num_cpus": 0})
class One:
    """{"instances": […]} -> {"predictions": […]}, request by request."""

    def __init__(self, name: str) -> None:
        self.subject = subjects(only=name)[name]

    async def __call__(self, request: Request) -> dict[str, Any]:
        return {"predictions": self.subject.predict_json(json.loads(await request.body())["instances"])}


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=WAITING, ray_actor_options={"num_cpus": 0})
class Batched:
    """The same, several requests in one run."""

    def __init__(self, name: str) -> None:
        self.subject = subjects(only=name)[name]

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.002)  # type: ignore[untyped-decorator]
    async def predict(self, requests: list[list[Any]]) -> list[list[Any]]:
        return predict_requests(self.subject, requests)

    async def __call__(self, request: Request) -> dict[str, Any]:
        return {"predictions": await self.predict(json.loads(await request.body())["instances"])}


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=256 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["BENCH_PORT"])})
    for name in names():
        deployment: Any = Batched if name == "bert" else One
        serve.run(deployment.bind(name), name=name, route_prefix=f"/{name}")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
