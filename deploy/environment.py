"""The container's environment: --env KEY=VALUE, checked against the settings that the container reads."""

import re
from collections.abc import Mapping, Sequence

from deploy.errors import UsageError
from serving.settings.explain import MASK, unknown_variables
from serving.settings.setting import SettingsError
from serving.settings.table import TABLE, Settings

SECRET_WORDS = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_KEY", re.IGNORECASE)
SECRET_SETTINGS = {variable for row in TABLE if row.secret for variable in row.variables}
MAX_VALUE = 1024  # characters, SageMaker's own limit of a key and of a value


def read_environment(pairs: Sequence[str], mode: Mapping[str, str]) -> dict[str, str]:
    """KEY=VALUE pairs; raises UsageError when one is malformed or the container would refuse it at its start.

    `mode` is what SageMaker sets by itself (SAGEMAKER_MULTI_MODEL).
    """
    environment = dict(_pair(text) for text in pairs)
    try:
        Settings.from_env({**environment, **mode})
    except SettingsError as err:
        raise UsageError(f"the container would not start: {'; '.join(err.mistakes)}") from None
    return environment


def warnings(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that is named as the container's own are, and is none of them."""
    return unknown_variables(environment)


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with a mask for each value that may be a secret."""
    return {name: MASK if _is_secret(name) else value for name, value in environment.items()}


def _is_secret(name: str) -> bool:
    return name in SECRET_SETTINGS or bool(SECRET_WORDS.search(name))


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"--env takes KEY=VALUE, got '{name if sign else text}'")
    if len(value) > MAX_VALUE:
        raise UsageError(f"--env {name}: the value has {len(value)} characters, SageMaker takes {MAX_VALUE}")
    return name, value
