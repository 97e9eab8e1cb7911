"""Who may load, unload and list models: everybody, callers on this machine, or those who know a secret."""

import hmac
from collections.abc import Callable
from ipaddress import ip_address

from serving.errors import Forbidden

MODES = ("open", "loopback", "secret")


class Management:
    """The gate before /models. `mode` is one of MODES, `secret` is "HEADER=VALUE" in the mode secret."""

    def __init__(self, mode: str, secret: str = "") -> None:
        self._mode = mode
        self._header, _, self._value = secret.partition("=")

    def check(self, header: Callable[[str], str | None], peer: str) -> None:
        """Raises Forbidden. `header` gives the caller's header of a name, `peer` is the caller's address as
        nginx saw it, "" when it did not say."""
        if self._mode == "secret" and not self._knows(header(self._header) or ""):
            raise Forbidden("managing models needs the header and the value that SERVE_MANAGEMENT_SECRET names")
        if self._mode == "loopback" and not _is_loopback(peer):
            raise Forbidden("models are managed from the container itself only, as SERVE_MANAGEMENT says")

    def _knows(self, value: str) -> bool:
        return hmac.compare_digest(value.encode("utf-8", "surrogateescape"), self._value.encode())


def is_management(rule: str) -> bool:
    """Whether a route loads, unloads or lists models: /models and all below it but an inference."""
    return rule == "/models" or (rule.startswith("/models/") and not rule.endswith("/invoke"))


def _is_loopback(peer: str) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
