"""Who may load, unload and list models: everybody, or those who know a secret."""

import hmac
from collections.abc import Callable

from serving.errors import Forbidden


class Management:
    """The gate before /models. `secret` is "HEADER=VALUE", or "" where everybody may pass."""

    def __init__(self, secret: str = "") -> None:
        self._header, _, self._value = secret.partition("=")

    def check(self, header: Callable[[str], str | None]) -> None:
        """Raises Forbidden. `header` gives the caller's header of a name."""
        if self._header and not self._knows(header(self._header) or ""):
            raise Forbidden("managing models needs the header and the value that SERVE_MANAGEMENT_SECRET names")

    def _knows(self, value: str) -> bool:
        return hmac.compare_digest(value.encode("utf-8", "surrogateescape"), self._value.encode())


def is_management(rule: str) -> bool:
    """Whether a route loads, unloads or lists models: /models and all below it but an inference, and /openapi.json."""
    return rule in ("/models", "/openapi.json") or (rule.startswith("/models/") and not rule.endswith("/invoke"))
