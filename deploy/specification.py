"""Options of the command line -> parameters of CreateModel and CreateEndpointConfig.

Every function takes the current state as its base, so that `update` changes only what its options name.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deploy import tagging
from deploy.context import Context
from deploy.endpoint import DEFAULT_INSTANCE_TYPE
from deploy.environment import read_environment
from deploy.errors import UsageError
from deploy.stack import VARIANT, content_name

S3_FOLDER = r"s3://[^/]+(/.*)?"
OFF = "off"
CAPTURED_AS_TEXT = {  # other types are kept as base64
    "JsonContentTypes": ["application/json", "application/jsonlines"],
    "CsvContentTypes": ["text/csv"],
}
SERVERLESS_MEMORY = range(1024, 6145, 1024)  # MB
MAX_SERVERLESS_CONCURRENCY = 200
TIMEOUTS = range(60, 3601)  # seconds
KEPT_OF_MODEL = ("ExecutionRoleArn", "VpcConfig", "EnableNetworkIsolation")  # where there are components, of the config
KEPT_OF_CONFIG = ("AsyncInferenceConfig", "DataCaptureConfig", "KmsKeyId", *KEPT_OF_MODEL)
# Asynchronous inference allows bodies of 1 GB and an hour for a reply.
ASYNCHRONOUS = {"SERVE_MAX_BODY_MB": "1024", "SERVE_REQUEST_TIMEOUT": "3600"}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options that `create` and `update` share."""
    configure_container(parser)
    parser.add_argument("--instance-type", metavar="TYPE", help=f"default: {DEFAULT_INSTANCE_TYPE}")
    parser.add_argument("--instances", type=int, metavar="N", help="number of instances; default: 1")
    parser.add_argument("--serverless", type=int, metavar="MB", help="serverless, with this memory: 1024 to 6144 MB")
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="serverless: concurrent requests; default: 5")
    parser.add_argument("--inference-ami", metavar="NAME", help="host image, which decides the GPU driver's version")
    parser.add_argument(
        "--data-capture", metavar="S3", help="keep requests and answers in s3://…/; off: keep them no longer"
    )
    parser.add_argument("--capture-percent", type=int, metavar="P", help="of the requests; default: 100")
    parser.add_argument("--kms-key", metavar="KEY", help="KMS key for the instances' disks, captured and async results")


def configure_container(parser: argparse.ArgumentParser) -> None:
    """Those of a container, whatever it runs on."""
    parser.add_argument("--image", metavar="URI", help="image in ECR; default: the repository's, tag by git describe")
    parser.add_argument("--model-data", metavar="S3", help="s3://…/model.tar.gz, or s3://…/ for unpacked files")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="a variable for the container")
    parser.add_argument("--health-timeout", type=int, metavar="S", help="time until /ping is 200: 60 to 3600 seconds")
    parser.add_argument("--download-timeout", type=int, metavar="S", help="time for the model data: 60 to 3600 seconds")
    tagging.configure(parser)
    parser.add_argument("--no-wait", action="store_true", help="return before AWS has finished")


def check(options: argparse.Namespace) -> None:
    """Raises UsageError with the first option that SageMaker would refuse."""
    check_container(options)
    if options.instances is not None and options.instances < 1:
        raise UsageError("--instances must be 1 or more")
    if options.instance_type and not options.instance_type.startswith("ml."):
        raise UsageError(
            f"--instance-type '{options.instance_type}': SageMaker's names begin with ml., such as ml.c5.xlarge"
        )
    _check_capture(options)
    if options.serverless is not None:
        _check_serverless(options)
    elif options.max_concurrency is not None:
        raise UsageError("--max-concurrency is for --serverless; the container limits a real-time instance's requests")


def check_container(options: argparse.Namespace) -> None:
    """The same of the options of a container."""
    data = options.model_data
    if data is not None and not re.fullmatch(r"s3://[^/]+/(.+\.tar\.gz|(.+/)?)", data):
        raise UsageError(f"--model-data '{data}' must be s3://BUCKET/KEY.tar.gz, or s3://BUCKET/PREFIX/ with a final /")
    for name in ("health_timeout", "download_timeout"):
        if getattr(options, name) not in (None, *TIMEOUTS):
            raise UsageError(f"--{name.replace('_', '-')} must be 60 to 3600 seconds")


def _check_capture(options: argparse.Namespace) -> None:
    where, percent = options.data_capture, options.capture_percent
    if where not in (None, OFF) and not re.fullmatch(S3_FOLDER, where):
        raise UsageError(f"--data-capture '{where}' is not an S3 folder: s3://BUCKET/PREFIX/, or {OFF}")
    if percent is not None and (where in (None, OFF) or not 1 <= percent <= 100):
        raise UsageError("--capture-percent is 1 to 100, and needs --data-capture")
    if where not in (None, OFF) and options.serverless is not None:
        raise UsageError("--data-capture does not work with --serverless: SageMaker captures on instances only")


def _check_serverless(options: argparse.Namespace) -> None:
    if options.serverless not in SERVERLESS_MEMORY:
        raise UsageError(f"--serverless must be {', '.join(map(str, SERVERLESS_MEMORY))} MB")
    if options.max_concurrency is not None and not 1 <= options.max_concurrency <= MAX_SERVERLESS_CONCURRENCY:
        raise UsageError(f"--max-concurrency must be 1 to {MAX_SERVERLESS_CONCURRENCY}")
    wrong = ("instance_type", "instances", "health_timeout", "download_timeout", "inference_ami")
    for name in wrong:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not work with --serverless, which has no instances")


def container(options: argparse.Namespace, base: Mapping[str, Any], image: str) -> dict[str, Any]:
    """A ContainerDefinition; raises UsageError when the container would refuse its environment."""
    kept = creatable(base)
    if options.model_data is not None:
        kept = {key: value for key, value in kept.items() if not key.startswith("ModelData")}
    environment = {**base.get("Environment", {}), **dict(_pairs(options, base))}
    made = {**kept, "Image": image, **_data(options, base)}
    return made | ({"Environment": environment} if environment else {})


def creatable(described: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeModel's container -> CreateModel's, which allows the archive's location in only one of two fields."""
    twice = "ModelDataUrl" in described
    return {key: value for key, value in described.items() if not (twice and key == "ModelDataSource")}


def _pairs(options: argparse.Namespace, base: Mapping[str, Any]) -> dict[str, str]:
    """The variables of --env, checked together with the current ones."""
    mode = {"SAGEMAKER_MULTI_MODEL": "true"} if _is_multi_model(options, base) else {}
    before = {**(ASYNCHRONOUS if getattr(options, "output", None) else {}), **base.get("Environment", {})}
    given = [*(f"{name}={value}" for name, value in before.items()), *options.env]
    return read_environment(given, mode)


def _is_multi_model(options: argparse.Namespace, base: Mapping[str, Any]) -> bool:
    return bool(getattr(options, "multi_model", None)) or base.get("Mode") == "MultiModel"


def _data(options: argparse.Namespace, base: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for the models' location; empty when they are in the image."""
    if multi := getattr(options, "multi_model", None):
        return {"Mode": "MultiModel", "ModelDataUrl": multi}
    url = options.model_data
    if url is None:
        return {}
    if url.endswith(".tar.gz") or base.get("Mode") == "MultiModel":
        return {"ModelDataUrl": url}
    source = {"S3Uri": url, "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"ModelDataSource": {"S3DataSource": source}}


def model(context: Context, container: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """CreateModel's parameters. `settings` holds the role and the network."""
    parameters = {
        "PrimaryContainer": dict(container),
        **{key: settings[key] for key in KEPT_OF_MODEL if settings.get(key)},
    }
    return {"ModelName": content_name(context.name, parameters), **parameters, "Tags": tagging.all_tags(context)}


def instances(options: argparse.Namespace) -> dict[str, Any]:
    """A ProductionVariant without a model: its components come later, and calls go to the copy with the fewest."""
    made = variant(options, {"RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}}, "")
    return {key: value for key, value in made.items() if key not in ("ModelName", "InitialVariantWeight")}


def variant(options: argparse.Namespace, base: Mapping[str, Any], model_name: str) -> dict[str, Any]:
    """A ProductionVariant; raises UsageError for options that do not fit the current one."""
    fixed = {"VariantName": VARIANT, "InitialVariantWeight": 1.0, **base, "ModelName": model_name}
    if options.serverless is not None or "ServerlessConfig" in base:
        return fixed | {"ServerlessConfig": _serverless(options, base)}
    given = {
        "InstanceType": options.instance_type or base.get("InstanceType", DEFAULT_INSTANCE_TYPE),
        "InitialInstanceCount": options.instances or base.get("InitialInstanceCount", 1),
        "ContainerStartupHealthCheckTimeoutInSeconds": options.health_timeout,
        "ModelDataDownloadTimeoutInSeconds": options.download_timeout,
        "InferenceAmiVersion": options.inference_ami,
    }
    return fixed | {key: value for key, value in given.items() if value is not None}


def _serverless(options: argparse.Namespace, base: Mapping[str, Any]) -> dict[str, Any]:
    there = base.get("ServerlessConfig", {})
    if base and not there:
        raise UsageError("the endpoint has instances; to make it serverless, delete it and create it with --serverless")
    if options.instance_type or options.instances:
        raise UsageError("the endpoint is serverless and has no instances; to give it some, delete and create it")
    return {
        **there,
        "MemorySizeInMB": options.serverless or there["MemorySizeInMB"],
        "MaxConcurrency": options.max_concurrency or there.get("MaxConcurrency", 5),
    }


def config(
    context: Context, variants: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], shadows: Sequence[Any] = ()
) -> dict[str, Any]:
    """CreateEndpointConfig's parameters. `settings` is for asynchronous inference, data capture and encryption."""
    kept = {key: settings[key] for key in KEPT_OF_CONFIG if settings.get(key)}
    copies = {"ShadowProductionVariants": list(shadows)} if shadows else {}
    parameters = {"ProductionVariants": list(map(dict, variants)), **copies, **kept}
    name = content_name(context.name, parameters)
    return {"EndpointConfigName": name, **parameters, "Tags": tagging.all_tags(context)}


def settings(options: argparse.Namespace, base: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration has beside its variants: those of `base`, with what the options change."""
    made = {key: base[key] for key in KEPT_OF_CONFIG if base.get(key)}
    if options.data_capture == OFF:
        made.pop("DataCaptureConfig", None)
    elif options.data_capture:
        made["DataCaptureConfig"] = _capture(options, made.get("KmsKeyId"))
    return _encrypted(made, options.kms_key) if options.kms_key else made


def _capture(options: argparse.Namespace, key: str | None) -> dict[str, Any]:
    return {
        "EnableCapture": True,
        "InitialSamplingPercentage": options.capture_percent or 100,
        "DestinationS3Uri": options.data_capture,
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
        "CaptureContentTypeHeader": CAPTURED_AS_TEXT,
        **({"KmsKeyId": key} if key else {}),
    }


def _encrypted(made: Mapping[str, Any], key: str) -> dict[str, Any]:
    """With the key for disks, captured requests and asynchronous results."""
    found = {**made, "KmsKeyId": key}
    if "DataCaptureConfig" in made:
        found["DataCaptureConfig"] = {**made["DataCaptureConfig"], "KmsKeyId": key}
    if "AsyncInferenceConfig" in made:
        there = made["AsyncInferenceConfig"]
        found["AsyncInferenceConfig"] = {**there, "OutputConfig": {**there["OutputConfig"], "KmsKeyId": key}}
    return found
