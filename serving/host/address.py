"""Addresses of this machine."""

LOOPBACK = "127.0.0.1"


def reached(host: str) -> str:
    """What to call to reach a server that listens on `host`."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)


def bracketed(host: str) -> str:
    """An address as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
