"""Serves the models with LitServe: one LitAPI for each model, as in LitServe's guide to serving
several endpoints on one port. Texts are batched."""

import os
from base64 import b64decode
from pathlib import Path
from typing import Any

import litserve

from bench.work import KINDS, predict

# model -> (requests in a batch, seconds that a batch waits for more)
BATCHED = {"bert": (16, 0.002)}


class ModelAPI(litserve.LitAPI):  # type: ignore[misc]
    """Answers {"body": BASE64} with {"prediction": …}."""

    def setup(self, device: str) -> None:
        name = self.api_path.strip("/")
        self.model = KINDS[name](Path(os.environ["BENCH_REPOSITORY"]) / name)
        self.session = self.model.session(2)

    def decode_request(self, request: dict[str, Any]) -> bytes:
        return b64decode(request["body"])

    def predict(self, x: Any) -> Any:
        return (
            [predict(self.model, self.session, body) for body in x]
            if isinstance(x, list)
            else self._one(x)
        )

    def _one(self, body: bytes) -> Any:
        return predict(self.model, self.session, body)

    def encode_response(self, output: Any) -> Any:
        return {"prediction": output}


def api(name: str) -> ModelAPI:
    size, wait = BATCHED.get(name, (1, 0.0))
    return ModelAPI(max_batch_size=size, batch_timeout=wait, api_path=f"/{name}")


if __name__ == "__main__":
    names = os.environ["BENCH_MODELS"].split(",")
    server = litserve.LitServer(
        [api(name) for name in names], accelerator="cpu", workers_per_device=2
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_PORT"]),
        generate_client_file=False,
        log_level="warning",
    )
