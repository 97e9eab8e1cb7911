"""How a process ended, in words."""

import signal

MEANINGS: dict[int, str] = {signal.SIGSEGV: "a crash in native code", signal.SIGABRT: "it gave up"}


def describe_exit(code: int, meaning: str = "") -> str:
    """What an exit code as subprocess has it (negative: a signal's number) means."""
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    meaning = meaning or MEANINGS.get(-code, "")
    return f"was killed by {name}{f' ({meaning})' if meaning else ''}"
