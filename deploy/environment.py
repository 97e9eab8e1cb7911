"""Checks the environment variables for the container against the container's settings, and masks
secrets."""

import re
from collections.abc import Mapping, Sequence

from deploy.errors import UsageError
from serving.settings.explain import MASK, warnings_of_unknown_variables
from serving.settings.setting import SettingsError
from serving.settings.settings import SECRETS, Settings

SECRET_WORDS = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_KEY", re.IGNORECASE
)


def parse(pairs: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE pairs. Raise UsageError for any other text."""
    for text in pairs:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", text):
            key = text.partition("=")[0]  # the value may be a secret
            raise UsageError(f"--env takes KEY=VALUE, got '{key}'")
    return dict(text.split("=", 1) for text in pairs)


def check(environment: Mapping[str, str], multi_model: bool) -> list[str]:
    """Return a warning for each variable that is named like a setting of the container, but is not
    one. Raise UsageError for a value with which the container would not start."""
    variables = dict(environment)
    if multi_model:
        variables["SAGEMAKER_MULTI_MODEL"] = "true"  # SageMaker sets it
    try:
        Settings.from_env(variables)
    except SettingsError as err:
        raise UsageError(f"the container would not start: {'; '.join(err.mistakes)}") from None
    return warnings_of_unknown_variables(environment)


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with each value that may be a secret masked."""
    return {name: MASK if _is_secret(name) else value for name, value in environment.items()}


def _is_secret(name: str) -> bool:
    return name in SECRETS or bool(SECRET_WORDS.search(name))
