"""MLServer: a custom runtime per model, called with KServe v2."""

import json
from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse

from bench.subject import subjects


class Runtime(MLModel):  # type: ignore[misc]
    """The input `instances` (BYTES: texts, or images in base64) or `x` (FP32) -> the output `predictions`."""

    async def load(self) -> bool:
        self.subject = subjects(only=self.name)[self.name]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        if given.datatype == "FP32":
            rows = NumpyCodec.decode_input(given)
            return self._response(NumpyCodec.encode_output("y", self.subject.run_rows(rows)))
        predictions = self.subject.predict_json([self._instance(text) for text in StringCodec.decode_input(given)])
        texts = [json.dumps(prediction) for prediction in predictions]
        return self._response(StringCodec.encode_output("predictions", texts))

    def _instance(self, text: str) -> Any:
        return text if self.name == "bert" else {"b64": text}

    def _response(self, output: Any) -> InferenceResponse:
        return InferenceResponse(model_name=self.name, outputs=[output])
