"""AWS's regions and their partitions, as botocore has them: China's and the US government's are apart."""

import difflib
import re
from dataclasses import dataclass
from functools import cache

from botocore.loaders import Loader

from deploy.errors import UsageError


@dataclass(frozen=True)
class Partition:
    """The second word of its ARNs, and the end of its hosts' names."""

    id: str = "aws"
    suffix: str = "amazonaws.com"


COMMERCIAL = Partition()
HOST = "api.sagemaker"  # SageMaker's first part of a host's name, by which the file calls it


def partition_of(region: str) -> Partition:
    """The region's; raises UsageError for one where botocore knows no SageMaker."""
    known = _with_sagemaker()
    if region not in known:
        near = difflib.get_close_matches(region, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
        raise UsageError(f"--region '{region}' has no SageMaker, as far as this boto3 knows: {hint}")
    return guessed(region)


@cache
def _with_sagemaker() -> frozenset[str]:
    """Asked of the file itself: a session reads it, and SageMaker's model, for each partition anew."""
    partitions = Loader().load_data("endpoints")["partitions"]
    return frozenset(
        region
        for partition in partitions
        for region in partition["services"].get(HOST, {}).get("endpoints", {})
        if region in partition["regions"]
    )


def guessed(region: str) -> Partition:
    """By the region's name alone, for a simulator; aws where it is like none."""
    for each in Loader().load_data("partitions")["partitions"]:
        if re.match(each["regionRegex"], region):
            return Partition(each["id"], each["outputs"]["dnsSuffix"])
    return COMMERCIAL
