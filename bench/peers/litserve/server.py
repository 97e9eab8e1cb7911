"""LitServe: one LitAPI per model, as its guide of several endpoints on one port has it."""

import os
from typing import Any

import litserve

from bench.subject import Subject, names, predict_requests, subjects

WORKERS = 2
BATCHED = {"bert": (16, 0.002)}  # model -> requests of a batch, seconds that it waits


class ModelAPI(litserve.LitAPI):  # type: ignore[misc]
    """{"instances": […]} -> {"predictions": […]}."""

    def setup(self, device: str) -> None:
        self.subject: Subject = subjects(only=self.api_path.strip("/"))[self.api_path.strip("/")]

    def decode_request(self, request: dict[str, Any]) -> list[Any]:
        return list(request["instances"])

    def predict(self, x: Any) -> Any:
        return predict_requests(self.subject, x) if self.max_batch_size > 1 else self.subject.predict_json(x)

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"predictions": output}


def api(name: str) -> ModelAPI:
    size, wait = BATCHED.get(name, (1, 0.0))
    return ModelAPI(max_batch_size=size, batch_timeout=wait, api_path=f"/{name}")


if __name__ == "__main__":
    server = litserve.LitServer([api(name) for name in names()], accelerator="cpu", workers_per_device=WORKERS)
    server.run(host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), generate_client_file=False, log_level="warning")
