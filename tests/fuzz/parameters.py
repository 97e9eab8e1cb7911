"""Makes the `parameters` of hostile requests: known names with values of all types and sizes."""

import json
from random import Random
from typing import Any

NAMES = (
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "triton_enable_empty_final_response",
    "triton_final_response",
    "shared_memory_region",
    "shared_memory_byte_size",
    "binary_data_size",
    "traceparent",
    "own",
    "sequence_id\0",
    "",
)
SEQUENCE = NAMES[:3]
BITS = (0, 1, 7, 31, 32, 33, 53, 62, 63, 64, 65, 200)
LENGTHS = (0, 1, 7, 8, 9, 16, 24, 64, 127, 128, 129, 200, 5000)
LETTERS = ("x", "7", "ä", "✓", "\0", "\n", '"', "\\", "\x7f")
WORDS = ("true", "false", "TRUE", "1", "0", "NEW_SESSION", "nan", "null")


def parameters(random: Random, near: int = 0) -> dict[str, Any]:
    """Return parameters, mostly those of sequences. Some numbers are `near` plus a power of two: a
    datatype that cuts off the higher bits turns them into `near`."""
    others = random.sample(NAMES, random.choice((0, 0, 0, 1, 2, 3)))
    made = {name: value(random, near) for name in others}
    for name in SEQUENCE:
        if random.random() < 0.8:
            is_flag = name != SEQUENCE[0] and random.random() < 0.8
            made[name] = random.random() < 0.5 if is_flag else value(random, near)
    if random.random() < 0.3:  # an id that most models accept
        made["sequence_id"] = random.choice((random.randrange(1, 900), "x" * 128))
    return made


def value(random: Random, near: int) -> Any:
    """Return a value of any JSON type."""
    kind = random.randrange(10)
    if kind < 3:
        return random.choice(LETTERS) * random.choice(LENGTHS)
    if kind == 3:
        return random.choice([*WORDS, str(near)])
    if kind < 6:
        sign = random.choice((1, -1))
        return sign * (2 ** random.choice(BITS)) + random.choice((-1, 0, 1, near))
    if kind == 6:
        return random.choice((0.0, 1.0, -1.5, 1e300, 5e-324, float(near)))
    return random.choice((True, False, None, near + 1, [near], {"a": near}, []))


def text(made: dict[str, Any]) -> bytes:
    """Return the parameters as JSON."""
    return json.dumps(made).encode()
