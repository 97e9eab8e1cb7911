"""Watches the Flask app's requests: how many are in work, the metrics, the headers that nginx logs.

Server-Timing has the stages' milliseconds; X-Error-Code, which replies.py sets, the error's code. nginx keeps the last
one for its log.
"""

from dataclasses import replace
from time import perf_counter

from flask import Flask, Response

from serving.errors import Overloaded
from serving.front.admission import Admission
from serving.front.incoming import Incoming, incoming
from serving.front.metrics import Finished, Metrics

WATCHED_BY_OTHERS = ("ping", "metrics")  # endpoints whose calls say nothing of the models' users


class Observer:
    """Counts every request but those of WATCHED_BY_OTHERS, and refuses those that are too many."""

    def __init__(self, metrics: Metrics, admission: Admission) -> None:
        self._metrics, self._admission = metrics, admission

    def watch(self, app: Flask) -> None:
        """Call it before other hooks are added."""
        app.before_request(self._begin)
        app.after_request(self._end)

    def _begin(self) -> None:
        source = incoming()
        if source.endpoint in WATCHED_BY_OTHERS:
            return
        source.started = perf_counter()
        source.is_in_flight = self._admission.enter()
        if not source.is_in_flight:
            raise Overloaded(
                f"{self._admission.limit} requests are in flight, which is the limit; send the request again later"
            )

    def _end(self, response: Response) -> Response:
        """A streamed reply ends when it is closed, after its last part was sent."""
        source = incoming()
        source.drain()
        if source.started is None:
            return response
        if header := source.timings.header():
            response.headers["Server-Timing"] = header
        started, facts = source.started, _facts(source, response)
        self._count_management(source, response)

        def finish() -> None:
            if source.is_in_flight:
                self._admission.leave()
            self._metrics.count(replace(facts, seconds=perf_counter() - started))

        if response.is_streamed:
            response.call_on_close(finish)
        else:
            finish()
        return response

    def _count_management(self, source: Incoming, response: Response) -> None:
        """POST /models loads, DELETE /models/NAME unloads."""
        rule = source.url_rule.rule if source.url_rule else ""
        result = response.headers.get("X-Error-Code", "ok")
        if source.method == "POST" and rule == "/models":
            self._metrics.count_load(result)
        elif source.method == "DELETE" and rule.startswith("/models/"):
            self._metrics.count_unload(result)


def _facts(source: Incoming, response: Response) -> Finished:
    return Finished(
        model=source.model,
        version=source.version,
        status=response.status_code,
        seconds=0.0,
        received=source.content_length or 0,
        sent=None if response.is_streamed else response.calculate_content_length(),
        stages=source.timings,
    )
