"""Triton's own way to take images and texts: a model of its python backend before and after the network (BLS).

Triton's stub ignores PYTHONPATH; the parameter `root` says where this project is. `network` is the model it calls.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`body` BYTES [n] (image files, texts) -> `predictions` BYTES [n] (JSON)."""

    def initialize(self, args: Mapping[str, str]) -> None:
        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        sys.path.append(parameters["root"])
        from bench.subject import LIMITS, client_of

        self.network, self.limits = parameters["network"], LIMITS
        client = client_of(json.loads(Path(parameters["subject"]).read_text()))
        if client is None:
            raise ValueError(f"{self.network} has no client")
        self.client = client
        self.outputs = [spec.name for spec in self.client.model.outputs]

    async def execute(self, requests: Sequence[Any]) -> list[Any]:
        return list(await asyncio.gather(*map(self.answer, requests)))

    async def answer(self, request: Any) -> Any:
        bodies = pb_utils.get_input_tensor_by_name(request, "body").as_numpy().ravel()
        instances = [self.client.codec.from_bytes(bytes(body), self.limits) for body in bodies]
        tensors = self.client.preprocess(instances)
        names = [spec.name for spec in self.client.model.inputs]
        call = pb_utils.InferenceRequest(
            model_name=self.network,
            requested_output_names=self.outputs,
            inputs=[pb_utils.Tensor(name, tensors[name]) for name in names],
        )
        reply = await call.async_exec()
        if reply.has_error():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(reply.error().message()))
        outputs = {name: pb_utils.get_output_tensor_by_name(reply, name).as_numpy() for name in self.outputs}
        found = self.client.postprocess(outputs, tensors, instances, self.client.read_parameters({}))
        texts = np.array([json.dumps(prediction).encode() for prediction in found], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("predictions", texts)])
