"""Serves the models with LitServe: one LitAPI for each model, as in LitServe's guide to serving
several endpoints on one port. Texts are batched."""

import os
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import litserve

from bench.work import BUNDLED, predict

# model -> (requests in a batch, seconds that a batch waits for more requests)
BATCHED = {"bert": (16, 0.002)}


class ModelAPI(litserve.LitAPI):  # type: ignore[misc]
    """Answers {"body": BASE64} with {"prediction": …}."""

    def setup(self, device: str) -> None:
        name = self.api_path.strip("/")
        self.model = BUNDLED[name](Path(os.environ["BENCH_REPOSITORY"]) / name)
        self.session = self.model.session(2)

    def decode_request(self, request: dict[str, Any]) -> bytes:
        return b64decode(request["body"])

    def predict(self, x: Any) -> Any:
        if isinstance(x, list):  # a batch
            return [predict(self.model, self.session, body) for body in x]
        return predict(self.model, self.session, x)

    def encode_response(self, output: Any) -> Any:
        return {"prediction": output}


def api(name: str) -> ModelAPI:
    size, seconds = BATCHED.get(name, (1, 0.0))
    return ModelAPI(max_batch_size=size, batch_timeout=seconds, api_path=f"/{name}")


if __name__ == "__main__":
    server = litserve.LitServer(
        [api(name) for name in BUNDLED], accelerator="cpu", workers_per_device=2
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning"
    )
