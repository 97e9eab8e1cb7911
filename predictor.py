"""Creates the Flask app, and answers inference requests.

To answer a request, `read` parses its body. Registry.use finds the ServedModel that the request
names, and keeps it loaded until the request leaves its slot. body.bind creates a Job for the model,
and Job.answer runs it and returns a Reply, from which the Response is made. A stream sends
each line of the job as soon as it is done.

The routes other than /invocations, /models/NAME/invoke, /ping and /metrics are blueprints in
serving/front/.
"""

from collections.abc import Callable
from http import HTTPStatus
from time import perf_counter

from flask import Flask, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from serving.bodies.other_apis import ApiBody
from serving.bodies.reading import Body
from serving.budget import Deadline, allow_any_time, allow_time, check_time
from serving.front.incoming import Incoming, incoming
from serving.front.kserve import kserve_routes
from serving.front.models import describing_routes, example_routes, managing_routes, naming_routes
from serving.front.openapi import openapi_routes, page_routes
from serving.front.other_apis import other_api_routes
from serving.front.parsing import read_invocation, read_request
from serving.front.replies import error_reply
from serving.front.services import Services, services
from serving.front.streams import response_of, stream_reply
from serving.job import Job
from serving.request import PATH, Target
from serving.request_memory import open_account, reserve
from serving.settings.settings import ON_POST, Settings


def create_app(settings: Settings, shared_prefix: str = "") -> Flask:
    """Return the WSGI application. The app opens no connection before its first request. The names
    of its files in /dev/shm begin with `shared_prefix`."""
    app = Flask(__name__, static_folder=None)
    app.request_class = Incoming
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.url_map.merge_slashes = False  # do not redirect paths with double slashes
    # answer OPTIONS with 405, like any method a route does not define
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.extensions["serving"] = Services(settings, shared_prefix)
    app.register_error_handler(Exception, error_reply)
    app.teardown_request(lambda _error: incoming().drain())
    app.add_url_rule("/ping", view_func=ping, methods=["GET", "POST"])
    app.add_url_rule("/invocations", view_func=invocations, methods=["POST"])
    app.add_url_rule("/metrics", view_func=metrics, methods=["GET"])
    app.register_blueprint(openapi_routes)
    app.register_blueprint(example_routes)
    if settings.page == "true":
        app.register_blueprint(page_routes)
    if settings.kserve != "false":
        app.register_blueprint(kserve_routes(infer))
    if settings.doors:
        app.register_blueprint(other_api_routes(infer))
    if settings.policy.by_call:
        app.register_blueprint(naming_routes)
        app.add_url_rule("/models/<path:name>/invoke", view_func=invoke, methods=["POST"])
    routes = managing_routes if settings.policy == ON_POST else describing_routes
    app.register_blueprint(routes)
    return app


def ping() -> Response:
    """Return 200 with an empty body, or 503 with the reason if Triton or, unless the ping mode is
    live, a model is not ready."""
    monitoring = services().monitoring
    if services().settings.ping_mode == "live":
        monitoring.check_live()
    else:
        monitoring.check_ready()
    return Response(status=HTTPStatus.OK, mimetype="text/plain")


def metrics() -> Response:
    """Return this project's metrics, followed by Triton's, in Prometheus' text format."""
    return Response(services().scrape(), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def invocations() -> Response:
    """Answer an inference request for the model that it names.

    The parameters of the model's client are read from the body's `parameters`, the query string,
    such as `?top_k=3`, and the header Custom-Attributes, in this order of precedence.
    """
    return infer(read_invocation, incoming().target)


def invoke(name: str) -> Response:
    """Answer an inference request for the model in the path."""
    return infer(read_invocation, Target(PATH, name))


def infer(read: Callable[[Incoming], Body], route: Target) -> Response:
    """Answer an inference request. `read` parses the body. `route` is the model that the path or
    the header Target-Model names. An error is answered here, not by Flask's error handler, so that
    the reply has the same headers, and the request is counted."""
    source = incoming()
    app = services()
    started = perf_counter()
    try:
        response = _answer(source, read, route)
    except Exception as err:
        response = error_reply(err)
    response.headers.update(source.reply_headers())

    def finish() -> None:
        """Leave the slot, and count the request. Remove the account and the time limits of this
        thread, because not every request sets its own: one to /examples, for example, does not. If
        the reply is sent in pieces, this is called after the last piece."""
        open_account(None)
        allow_any_time()
        if source.slot:
            source.slot.leave()
        app.metrics.count(source, response, perf_counter() - started)

    if response.is_streamed:
        response.call_on_close(finish)
    else:
        finish()
    return response


def _answer(source: Incoming, read: Callable[[Incoming], Body], route: Target) -> Response:
    """Admit the request, read it, and return the model's reply. Raise a ServingError or an
    HTTPException."""
    app = services()
    sent = source.content_length or 0
    seconds = app.gateway.timeout
    source.slot = app.admission.enter(sent)
    open_account(source.slot)
    allow_time(Deadline(source.forwarded + seconds), seconds, sent)
    check_time()  # raises TooLate if the deadline passed while the request was in gunicorn's queue
    source.check_attributes()
    body = read(source)
    request = read_request(source, body, route)
    target = request.target
    # If no model is named, the body of another API goes to the only model with one of the tasks of
    # the API. If there is not exactly one such model, the usual default applies.
    tasks = body.tasks if isinstance(body, ApiBody) else ()
    loading = source.timings.stage("load")
    with app.registry.use(source.slot.keep, loading, target.name, target.version, tasks) as served:
        source.model = served.name
        job = body.bind(served, request)
        if job.request.stream:  # the headers, the body, the route or a setting may ask for one
            # a stream has a later deadline than the one set above
            allow_time(job.request.deadline, seconds, sent)
            return stream_reply(source, job)
        response = _whole_reply(source, job)
        if response.is_streamed:  # a large reply, which the caller must read within `seconds`
            allow_time(Deadline.after(seconds), seconds, sent)
        return response


def _whole_reply(source: Incoming, job: Job) -> Response:
    """Run the job to its end and return its reply, which is sent in pieces if it is large. Raise a
    ServingError or BackendDied."""
    reply = job.answer(services().gateway)
    source.version = reply.version
    reserve(len(reply.content), "the answer")
    response = response_of(source, reply)
    if job.session:
        response.headers.update(job.session.headers())
    return response
