"""Lists the platform's rules in one table, and keeps a journal of the rules that were broken.

Each row of the table contains the limit that the simulator enforces, and the text with which it
reports a violation.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

MEGABYTE = 1024 * 1024

HOSTING = "SageMaker developer guide, 'Custom inference code with hosting services'"
MULTI_MODEL = "SageMaker developer guide, 'Custom containers contract for multi-model endpoints'"
INVOKE = "SageMaker API reference, 'InvokeEndpoint'"
STREAM = "SageMaker API reference, 'InvokeEndpointWithResponseStream'"
ASYNC = "SageMaker API reference, 'InvokeEndpointAsync'"
PIPELINE = "SageMaker developer guide, 'Inference pipelines'"
ISOLATION = (
    "SageMaker developer guide, 'Run training and inference containers in internet-free mode'"
)
VARIANT = "SageMaker API reference, 'ProductionVariant'"
CHOSEN = "not published by AWS: chosen here"


@dataclass(frozen=True)
class Rule:
    """A rule of the platform. In `text`, {limit} stands for the limit, and {megabytes} for the
    limit in MB."""

    id: str
    text: str
    source: str
    limit: float = 0

    def __str__(self) -> str:
        megabytes = f"{self.limit / MEGABYTE:g}"
        text = self.text.format(limit=f"{self.limit:g}", megabytes=megabytes)
        return f"{text} ({self.source})"


_ALL = (
    Rule("start-up", "/ping must answer 200 within {limit} s of the start", VARIANT, 480),
    Rule("ping-time", "/ping must answer within {limit} s", HOSTING, 2),
    Rule(
        "ping-status",
        "/ping must answer 200, or the instance is replaced (here after {limit} in a row)",
        HOSTING,
        3,
    ),
    Rule("ping-body", "/ping must answer with an empty body", HOSTING),
    Rule("ping-interval", "/ping is asked every {limit} s", CHOSEN, 5),
    Rule("exit", "the container must not end by itself; it is started again", HOSTING),
    Rule(
        "stop", "SIGTERM must end the container within {limit} s, then it gets SIGKILL", HOSTING, 30
    ),
    Rule(
        "listening",
        "the container must accept a connection on its port within {limit} s",
        HOSTING,
        0.25,
    ),
    Rule("safe-ports", "every other port must lie in SAGEMAKER_SAFE_PORT_RANGE", PIPELINE),
    Rule(
        "memory",
        "a container beyond the instance's memory is killed",
        "Linux, the memory limit of a control group",
    ),
    Rule("model-read-only", "/opt/ml/model is read-only; write below /tmp", HOSTING),
    Rule(
        "network", "with network isolation nothing outside the container can be reached", ISOLATION
    ),
    Rule("time", "the container must answer /invocations within {limit} s", HOSTING, 60),
    Rule("stream-time", "a stream must end within {limit} s", STREAM, 480),
    Rule(
        "async-time",
        "an asynchronous call must end within InvocationTimeoutSeconds, at most {limit} s",
        ASYNC,
        3600,
    ),
    Rule("status", "4xx and 5xx of the container reach the caller as ModelError", INVOKE),
    Rule("body", "a request's body has at most {megabytes} MB", INVOKE, 25 * MEGABYTE),
    Rule("reply-body", "a reply's body has at most {megabytes} MB", INVOKE, 25 * MEGABYTE),
    Rule(
        "async-body",
        "an asynchronous call's body in S3 has at most {megabytes} MB",
        ASYNC,
        1024 * MEGABYTE,
    ),
    Rule(
        "async-inline",
        "an asynchronous call's inline body has at most {limit} bytes",
        ASYNC,
        128_000,
    ),
    Rule("headers", "other headers than the API's own are dropped", INVOKE),
    Rule("query", "query strings are dropped", INVOKE),
    Rule(
        "attributes",
        "Custom-Attributes have at most {limit} visible ASCII characters",
        INVOKE,
        1024,
    ),
    Rule(
        "session",
        "a new session is answered with 'Session-Id: ID; Expires=yyyy-mm-ddThh:mm:ssZ'",
        INVOKE,
    ),
    Rule("archive", "a model archive is a tar.gz whose entries stay in it", MULTI_MODEL),
    Rule(
        "load-status",
        "POST /models answers 200, 409 (loaded already), 507 (no memory) or 4xx",
        MULTI_MODEL,
    ),
    Rule(
        "load-time",
        "a load must end within {limit} s; the caller waits no longer than for a call",
        MULTI_MODEL,
        360,
    ),
    Rule(
        "unload-status",
        "DELETE /models/NAME answers 200, or 404 for a model that is not loaded",
        MULTI_MODEL,
    ),
    Rule("unload-time", "an unload must end within {limit} s", MULTI_MODEL, 360),
    Rule("lost-model", "a model that was loaded must not be answered 404", MULTI_MODEL),
    Rule(
        "memory-share",
        "models are unloaded when the container takes more than {limit} of the memory",
        CHOSEN,
        0.8,
    ),
)

Rules = Mapping[str, Rule]
RULES: Rules = {rule.id: rule for rule in _ALL}


def with_limits(limits: Mapping[str, float]) -> Rules:
    """Return all rules, with their limits replaced as `limits` says. Raise KeyError for an unknown
    rule."""
    changed = {name: replace(RULES[name], limit=limit) for name, limit in limits.items()}
    return {**RULES, **changed}


class Journal:
    """Prints messages immediately, and counts events for the summary at the end. Thread-safe.
    `write` is called with each message, without a line break at its end."""

    def __init__(self, rules: Rules, write: Callable[[str], None]) -> None:
        self._rules = rules
        self.say = write
        self.complaints: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._reported_once: set[tuple[str, str]] = set()

    def limit(self, rule: str) -> float:
        return self._rules[rule].limit

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def complain(self, rule: str, what: str, once: bool = False) -> None:
        """Report that a rule was broken, and what broke it. If `once` is true, do not report the
        same text again, because it could recur in every call."""
        with self._lock:
            if once and (rule, what) in self._reported_once:
                return
            if once:
                self._reported_once.add((rule, what))
            self.complaints[rule] += 1
        self.say(f"rule {rule}: {what}: {self._rules[rule]}")

    def summary(self) -> str:
        """Return all counts, and how often each rule was broken."""
        counts = [f"{number} {what}" for what, number in self.counts.items()]
        broken = [f"{rule} {number}" for rule, number in sorted(self.complaints.items())]
        counted = ", ".join(counts) or "no calls"
        return f"{counted}\nrules broken: {', '.join(broken) or 'none'}"
