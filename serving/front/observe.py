"""Watches the Flask app's requests: the metrics, the headers from which nginx writes its log line, the log's id.

Server-Timing has the stages' milliseconds; X-Error-Code, which predictor.py sets, the error's code.
"""

from dataclasses import replace
from time import perf_counter

from flask import Flask, Response, current_app, g, request

from serving.front.logs import REQUEST_ID
from serving.front.metrics import Finished, Metrics
from serving.inference import timings

WATCHED_BY_OTHERS = ("ping", "metrics")  # endpoints whose calls say nothing of the models' users


def observe(app: Flask, metrics: Metrics) -> None:
    """Counts every request but those of WATCHED_BY_OTHERS; call it before other hooks are added."""
    app.extensions["metrics"] = metrics
    app.before_request(_begin)
    app.after_request(_end)


def _metrics() -> Metrics:
    found: Metrics = current_app.extensions["metrics"]
    return found


def _begin() -> None:
    if request.endpoint in WATCHED_BY_OTHERS:
        return
    g.timings = timings.begin()
    g.started = perf_counter()
    _metrics().started()


def _end(response: Response) -> Response:
    """A streamed reply ends when it is closed, after its last part was sent."""
    response.call_on_close(_forget)
    if "started" not in g:
        return response
    if header := timings.server_timing(g.timings):
        response.headers["Server-Timing"] = header
    metrics, started, facts = _metrics(), g.started, _facts(response)
    _count_management(metrics, response)

    def finish() -> None:
        metrics.finished(replace(facts, seconds=perf_counter() - started))

    if response.is_streamed:
        response.call_on_close(finish)
    else:
        finish()
    return response


def _forget() -> None:
    """What this thread logs from now on is of no request."""
    REQUEST_ID.set("")


def _facts(response: Response) -> Finished:
    return Finished(
        model=g.get("model_name") or "",
        version=g.get("model_version") or "",
        status=response.status_code,
        seconds=0.0,
        received=request.content_length or 0,
        sent=None if response.is_streamed else response.calculate_content_length(),
        stages=g.timings,
    )


def _count_management(metrics: Metrics, response: Response) -> None:
    """POST /models loads, DELETE /models/NAME unloads."""
    rule = request.url_rule.rule if request.url_rule else ""
    result = response.headers.get("X-Error-Code", "ok")
    if request.method == "POST" and rule == "/models":
        metrics.count_load(result)
    elif request.method == "DELETE" and rule.startswith("/models/"):
        metrics.count_unload(result)
