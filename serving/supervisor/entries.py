"""Which lines of a process are one entry of the log: a traceback, and what is indented below a line."""

from collections.abc import Iterable

from serving.supervisor.log_lines import is_json

MOST_LINES = 500  # of one entry; what is beyond begins another
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class Entries:
    """Takes lines as they come; the last entry is open until another line begins one, or `end`."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._is_traceback = False

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def add(self, lines: Iterable[str]) -> list[str]:
        """The entries that are whole now, each with its line ends."""
        whole = []
        for line in lines:
            if self._open and not self._continues(line):
                whole += self.end()
            self._open.append(line)
            self._is_traceback |= TRACEBACK in line
            if is_json(line):
                whole += self.end()
        return whole

    def end(self) -> list[str]:
        """The open one, if there is one."""
        text, self._open, self._is_traceback = "\n".join(self._open).rstrip(), [], False
        return [text] if text else []

    def _continues(self, line: str) -> bool:
        if is_json(line) or len(self._open) >= MOST_LINES:
            return False
        if line.startswith((" ", "\t")):
            return True
        if not self._is_traceback:
            return False
        last = self._open[-1]
        is_reason = last.startswith((" ", "\t", TRACEBACK))  # "ValueError: …" below the frames
        return not line or is_reason or line.startswith((TRACEBACK, *CHAINED))
