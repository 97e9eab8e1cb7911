"""The container's environment from --env KEY=VALUE, checked against the container's settings."""

import re
from collections.abc import Mapping, Sequence

from deploy.errors import UsageError
from serving.settings.explain import MASK, unknown_variables
from serving.settings.setting import SettingsError
from serving.settings.table import TABLE, Settings

SECRET_WORDS = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_KEY", re.IGNORECASE)
SECRET_SETTINGS = {variable for row in TABLE if row.secret for variable in row.variables}
MAX_VALUE = 1024  # characters, SageMaker's limit for a key and for a value


def read_environment(pairs: Sequence[str], mode: Mapping[str, str]) -> dict[str, str]:
    """The variables in KEY=VALUE pairs; raises UsageError for a malformed pair or a value that the container refuses.

    `mode` holds the variables that SageMaker itself sets (SAGEMAKER_MULTI_MODEL).
    """
    environment = dict(_pair(text) for text in pairs)
    try:
        Settings.from_env({**environment, **mode})
    except SettingsError as err:
        raise UsageError(f"the container would not start: {'; '.join(err.mistakes)}") from None
    return environment


def warnings(environment: Mapping[str, str]) -> list[str]:
    """A line for each unknown variable whose name looks like one of the container's settings."""
    return unknown_variables(environment)


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with a mask in place of each value that may be a secret."""
    return {name: MASK if _is_secret(name) else value for name, value in environment.items()}


def _is_secret(name: str) -> bool:
    return name in SECRET_SETTINGS or bool(SECRET_WORDS.search(name))


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"--env takes KEY=VALUE, got '{name if sign else text}'")
    if len(value) > MAX_VALUE:
        raise UsageError(f"--env {name}: the value has {len(value)} characters, SageMaker allows {MAX_VALUE}")
    return name, value
