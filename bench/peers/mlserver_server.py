"""Serves the models with MLServer: one runtime with two workers, and one endpoint for each
model."""

import asyncio
import os
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import mlserver
from mlserver.handlers import custom_handler

from bench.work import BUNDLED, predict


class Models(mlserver.MLModel):  # type: ignore[misc]
    """Answers {"body": BASE64} with {"prediction": …}."""

    async def load(self) -> bool:
        root = Path(os.environ["BENCH_REPOSITORY"])
        self.models = {name: kind(root / name) for name, kind in BUNDLED.items()}
        self.sessions = {name: model.session(2) for name, model in self.models.items()}
        return True

    @custom_handler(rest_path="/efficientnet")  # type: ignore[untyped-decorator]
    async def efficientnet(self, request: dict[str, str]) -> dict[str, Any]:
        return self._predict("efficientnet", request)

    @custom_handler(rest_path="/yolov4_tiny")  # type: ignore[untyped-decorator]
    async def yolov4_tiny(self, request: dict[str, str]) -> dict[str, Any]:
        return self._predict("yolov4_tiny", request)

    @custom_handler(rest_path="/bert")  # type: ignore[untyped-decorator]
    async def bert(self, request: dict[str, str]) -> dict[str, Any]:
        return self._predict("bert", request)

    def _predict(self, name: str, request: dict[str, str]) -> dict[str, Any]:
        body = b64decode(request["body"])
        return {"prediction": predict(self.models[name], self.sessions[name], body)}


async def serve(port: int, scratch: str) -> None:
    settings = mlserver.Settings(
        debug=False,
        parallel_workers=2,
        host="127.0.0.1",
        http_port=port,
        grpc_port=0,
        metrics_port=0,
        metrics_dir=f"{scratch}/metrics",
        environments_dir=f"{scratch}/environments",
    )
    runtime = mlserver.ModelSettings(
        name="models", implementation="bench.peers.mlserver_server.Models"
    )
    await mlserver.MLServer(settings).start([runtime])


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
