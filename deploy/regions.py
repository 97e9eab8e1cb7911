"""AWS's regions and their partitions, as botocore has them: China's and the US government's are apart."""

import difflib
import re
from dataclasses import dataclass

import boto3
from botocore.loaders import Loader

from deploy.errors import UsageError


@dataclass(frozen=True)
class Partition:
    """The second word of its ARNs, and the end of its hosts' names."""

    id: str = "aws"
    suffix: str = "amazonaws.com"


COMMERCIAL = Partition()


def partition_of(region: str) -> Partition:
    """The region's; raises UsageError for one where botocore knows no SageMaker."""
    session = boto3.Session()
    known = {
        each: partition
        for partition in session.get_available_partitions()
        for each in session.get_available_regions("sagemaker", partition)
    }
    if region not in known:
        near = difflib.get_close_matches(region, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
        raise UsageError(f"--region '{region}' has no SageMaker, as far as this boto3 knows: {hint}")
    return guessed(region)


def guessed(region: str) -> Partition:
    """By the region's name alone, for a simulator; aws where it is like none."""
    for each in Loader().load_data("partitions")["partitions"]:
        if re.match(each["regionRegex"], region):
            return Partition(each["id"], each["outputs"]["dnsSuffix"])
    return COMMERCIAL
