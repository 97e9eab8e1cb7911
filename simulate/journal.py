"""The journal: lines to print at once, and counts for the summary."""

import threading
from collections import Counter
from collections.abc import Callable

from simulate.rules import Rules

SHOWN = 5  # complaints to print per rule; more are only counted


class Journal:
    """Safe to share between threads. `write` gets whole lines, without a line end."""

    def __init__(self, rules: Rules, write: Callable[[str], None]) -> None:
        self.rules, self.say = rules, write
        self.complaints: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._once: set[tuple[str, str]] = set()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def complain(self, rule: str, what: str) -> None:
        """Report what the platform would not accept, with the rule that forbids it."""
        with self._lock:
            self.complaints[rule] += 1
            number = self.complaints[rule]
        if number <= SHOWN:
            more = "; more of this rule are only counted" if number == SHOWN else ""
            self.say(f"rule {rule}: {what}: {self.rules[rule]}{more}")

    def complain_once(self, rule: str, what: str) -> None:
        """The same, but each text only once: for what happens at every call."""
        if self._is_new((rule, what)):
            self.complain(rule, what)

    def say_once(self, text: str) -> None:
        if self._is_new(("", text)):
            self.say(text)

    def _is_new(self, line: tuple[str, str]) -> bool:
        with self._lock:
            known = line in self._once
            self._once.add(line)
        return not known

    def summary(self) -> str:
        """Return all counts, and how often each rule was broken."""
        counts = ", ".join(f"{number} {what}" for what, number in self.counts.items()) or "no calls"
        broken = ", ".join(f"{rule} {number}" for rule, number in sorted(self.complaints.items())) or "none"
        return f"{counts}\nrules broken: {broken}"
