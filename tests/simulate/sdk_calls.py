"""Calls an endpoint with SageMaker's SDK, version 2 or 3, and prints the answers as JSON.

This is a separate program, because the two versions are packages of the same name in different
folders. The rows of a table come from standard input.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.harness import ROOT

SDK_3 = "3"
ENDPOINT = "desk"
NUMBERS = [[1.0, 2.5], [3.0, 0.5]]
PICTURE = b64encode((ROOT / "model_repository/resnet/example.png").read_bytes()).decode()


def calls(rows: list[list[float]], columns: list[str]) -> dict[str, tuple[str, str, Any, str]]:
    """Return the serializer, the deserializer, the data and the model of each call."""
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    lines = [" ".join(f"{index}:{cell}" for index, cell in enumerate(row)) for row in rows]
    frame = {"columns": columns, "index": [*range(len(rows))], "data": rows}
    return {
        "rows": ("JSON", "JSON", rows, "forest"),
        "array": ("JSON", "JSON", np.array(rows), "forest"),
        "row": ("JSON", "JSON", rows[0], "forest"),
        "instances": ("JSON", "JSON", {"instances": rows}, "forest"),
        "records": ("JSON", "JSON", {"dataframe_records": records}, "forest"),
        "frame": ("JSON", "JSON", {"dataframe_split": frame}, "forest"),
        "csv": ("CSV", "JSON", rows, "forest"),
        "csv for csv": ("CSV", "CSV", rows, "forest"),
        "libsvm": ("LibSVM", "JSON", "\n".join(f"0 {line}" for line in lines), "forest"),
        "lines": ("JSONLines", "JSONLines", rows, "forest"),
        "npy": ("Numpy", "Numpy", NUMBERS, "scale"),
        "numbers": ("JSON", "JSON", NUMBERS, "scale"),
        "tensors": ("JSON", "JSON", {"inputs": {"x": NUMBERS}}, "scale"),
        "only tensor": ("JSON", "JSON", {"inputs": NUMBERS}, "scale"),
        "picture": ("JSON", "JSON", PICTURE, "resnet"),
    }


def sdk_2() -> Callable[[str, str, Any, str], Any]:
    """Return a function that makes a call with SDK 2."""
    from sagemaker import deserializers, serializers
    from sagemaker.predictor import Predictor
    from sagemaker.session import Session

    session = Session()

    def call(serializer: str, deserializer: str, data: Any, model: str) -> Any:
        predictor = Predictor(
            ENDPOINT,
            session,
            serializer=getattr(serializers, f"{serializer}Serializer")(),
            deserializer=getattr(deserializers, f"{deserializer}Deserializer")(),
        )
        return predictor.predict(data, custom_attributes=f"model_name={model}")

    return call


def sdk_3() -> Callable[[str, str, Any, str], Any]:
    """Return a function that makes a call with SDK 3, which sends no content types unless they are
    given."""
    from sagemaker.core.deserializers import base as deserializers
    from sagemaker.core.resources import Endpoint
    from sagemaker.core.serializers import base as serializers

    def call(serializer: str, deserializer: str, data: Any, model: str) -> Any:
        writer = getattr(serializers, f"{serializer}Serializer")()
        reader = getattr(deserializers, f"{deserializer}Deserializer")()
        endpoint = Endpoint(endpoint_name=ENDPOINT, serializer=writer, deserializer=reader)
        reply = endpoint.invoke(
            data,
            content_type=writer.CONTENT_TYPE,
            accept=reader.ACCEPT[0],
            custom_attributes=f"model_name={model}",
        )
        return reply.body

    return call


def main() -> None:
    document = json.load(sys.stdin)
    call = sdk_3() if sys.argv[1] == SDK_3 else sdk_2()
    answers = {
        name: call(*arguments)
        for name, arguments in calls(document["rows"], document["columns"]).items()
    }
    print(json.dumps(answers, default=np.ndarray.tolist))


if __name__ == "__main__":
    main()
