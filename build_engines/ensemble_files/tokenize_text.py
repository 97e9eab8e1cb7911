"""A part of an ensemble, on Triton's Python backend: INPUT0 STRING [n, 1] -> tokens [n, longest].

The outputs are those of input_ids, attention_mask and token_type_ids that config.pbtxt names, in
its datatypes; the tokenizer is ../tokenizer/tokenizer.json. The parameter `prompt` goes before each
text. Triton's Python environment needs the package tokenizers.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

VALUES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


class TritonPythonModel:
    """The methods' names and arguments are Triton's."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.limit, self.multiple = (
            int(parameters["max_length"]),
            int(parameters["pad_to_multiple_of"]),
        )
        self.prompt, self.padding = parameters["prompt"], {"input_ids": int(parameters["pad_id"])}
        self.outputs = {
            entry["name"]: pb_utils.triton_string_to_numpy(entry["data_type"])
            for entry in config["output"]
        }
        self.tokenizer = Tokenizer.from_file(
            str(Path(args["model_repository"]) / "tokenizer" / "tokenizer.json")
        )
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.limit, direction=parameters["truncation_side"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request; a request's texts are padded to its longest."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        texts = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().ravel()
        try:
            encodings = self.tokenizer.encode_batch([self.prompt + text.decode() for text in texts])
        except UnicodeDecodeError as err:
            error = pb_utils.TritonError(
                f"INPUT0 is not UTF-8 ({err})", pb_utils.TritonError.INVALID_ARG
            )
            return pb_utils.InferenceResponse(error=error)
        longest = max(map(len, encodings))
        width = min(-(-longest // self.multiple) * self.multiple, self.limit)
        return pb_utils.InferenceResponse(
            [self._tensor(name, encodings, width) for name in self.outputs]
        )

    def _tensor(self, name: str, encodings: Sequence[Any], width: int) -> Any:
        values = np.full((len(encodings), width), self.padding.get(name, 0), self.outputs[name])
        for row, encoding in zip(values, encodings, strict=True):
            row[: len(encoding)] = getattr(encoding, VALUES[name])
        return pb_utils.Tensor(name, values)
