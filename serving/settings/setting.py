"""One setting: the variables that it is read from, and how its value is written back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.named_value import NamedValue
from serving.settings.parsing import format_value


def row(
    default: Any, meaning: str, within: tuple[float | None, float | None] = (None, None), **more: Any
) -> dict[str, Any]:
    """A Setting's columns: `within` are the least and the most that it may be."""
    return {"default": default, "help": meaning, "minimum": within[0], "maximum": within[1], **more}


class SettingsError(Exception):
    """One or more wrong values; `mistakes` has a line for each: variable, value and what is allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, kw_only=True)
class Setting(NamedValue):
    """The first of `variables` that is set and not empty counts; the first is the main one."""

    variables: tuple[str, ...]
    formatter: Callable[[Any], str] = format_value  # the parser's way back
    secret: bool = False  # its value is never shown

    def read(self, environ: Mapping[str, str]) -> Any:
        """The value; raises ValueError that names variable, value and what is allowed."""
        for variable in self.variables:
            if text := environ.get(variable, "").strip():
                try:
                    return self.parse(text)
                except ValueError:
                    shown = "…" if self.secret else repr(text)
                    raise ValueError(f"{variable}={shown} is wrong: it must be {self.expected()}") from None
        return self.default

    def format(self, value: Any) -> str:
        """The text that is read as this value."""
        return self.formatter(value)
