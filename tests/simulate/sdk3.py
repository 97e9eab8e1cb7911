"""A user of the sagemaker SDK v3, in an interpreter that has it: runs the example given as first argument, goes on
with its `endpoint` and the PNG on standard input, and prints what it got as JSON, one line."""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

RESNET = {"content_type": "image/png", "custom_attributes": "model_name=resnet"}
BERT = {"custom_attributes": "model_name=bert"}
SUMMER = {"content_type": "application/json", "custom_attributes": "model_name=summer"}


def answers(endpoint: Any, picture: bytes) -> dict[str, Any]:
    reply = endpoint.invoke(body=picture, inference_id="mine", **RESNET)
    accepted = endpoint.invoke_async(input_location="s3://bucket/picture", **RESNET)
    return {
        "status": endpoint.endpoint_status,
        "image": json.loads(reply.body.read()),
        "variant": reply.invoked_production_variant,
        "attributes": reply.custom_attributes,
        "asynchronous": accepted.output_location,
        "json": by_serializer(endpoint),
        "streamed": stream(endpoint, picture),
        "session": session(endpoint),
    }


def session(endpoint: Any) -> dict[str, Any]:
    first = add(endpoint, 1, "NEW_SESSION")
    last = add(endpoint, 10, first.new_session_id.partition(";")[0], sequence_end=True)
    return {"new": first.new_session_id, "closed": last.closed_session_id, "sum": json.loads(last.body.read())}


def add(endpoint: Any, number: float, session: str, **parameters: Any) -> Any:
    tensor = {"name": "number", "datatype": "FP32", "shape": [1, 1], "data": [number]}
    return endpoint.invoke(
        body=json.dumps({"inputs": [tensor], "parameters": parameters}), session_id=session, **SUMMER
    )


def by_serializer(endpoint: Any) -> Any:
    """The SDK's own JSON both ways, which names no content type."""
    endpoint.serializer = importlib.import_module("sagemaker.core.serializers").JSONSerializer()
    endpoint.deserializer = importlib.import_module("sagemaker.core.deserializers").JSONDeserializer()
    answer = endpoint.invoke(body={"instances": ["hello"]}, **BERT).body
    endpoint.serializer = endpoint.deserializer = None
    return answer


def stream(endpoint: Any, picture: bytes) -> Any:
    """By the boto3 client that the SDK has made."""
    runtime = endpoint.get_sagemaker_client(service_name="sagemaker-runtime")
    reply = runtime.invoke_endpoint_with_response_stream(
        EndpointName=endpoint.endpoint_name,
        Body=picture,
        ContentType=RESNET["content_type"],
        CustomAttributes=RESNET["custom_attributes"],
    )
    return json.loads(b"".join(event["PayloadPart"]["Bytes"] for event in reply["Body"]))


def errors(endpoint: Any, picture: bytes) -> dict[str, str]:
    return {
        "body": failure(lambda: endpoint.invoke(body=b"no picture", **RESNET)),
        "target": failure(lambda: endpoint.invoke(body=picture, target_model="a.tar.gz")),
        "name": failure(lambda: endpoint.get("other")),
        "stream": failure(lambda: endpoint.invoke_with_response_stream(body=picture, **RESNET)),
    }


def failure(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


if __name__ == "__main__":
    # Not a package of the SDK's: other tests' tools bring it, jsonschema takes it, and it compiles a grammar for 3 s.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    names: dict[str, Any] = {}
    exec(sys.argv[1], names)
    picture = sys.stdin.buffer.read()
    endpoint = names["endpoint"]
    print(json.dumps({**answers(endpoint, picture), "errors": errors(endpoint, picture)}))
