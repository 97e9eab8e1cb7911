"""Tests each model with its example after every start of tritonserver, by asking a gunicorn worker
to call the model.

A worker makes the call rather than this process, because a model's client may import anything. The
worker's route for this is not public. Models loaded by calls (on_post.py, on_demand.py) are not
tested. Models whose folders have changed are not tested again, because on_change.py has already
checked them.
"""

import json
import logging
import threading
import time
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import quote

from serving.errors import ModelFailed, ServingError
from serving.host.network import ask
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.policy import Policy
from serving.model_status.models import Entry, Models
from serving.model_status.states import READY

log = logging.getLogger(__name__)
NO_WORKER = 0.1  # seconds to wait if no worker responded, for example while gunicorn starts
NO_VERDICT = 1.0  # seconds to wait if a worker could not tell whether the model works


class Examples(threading.Thread):
    """Tests models that have not answered their examples yet, whenever the table of models changes.
    `policy` handles models that fail."""

    def __init__(self, manager: Manager, policy: Policy) -> None:
        super().__init__(name="examples", daemon=True)
        self.manager = manager
        self.policy = policy

    def run(self) -> None:
        while True:
            self.manager.changed.clear()  # first, so that no change during `step` is missed
            try:
                pause = self.step()
            except Exception:
                log.exception("the examples cannot be tested; trying again")
                pause = NO_VERDICT
            if pause:
                time.sleep(pause)
            else:
                self.manager.changed.wait()

    def step(self) -> float:
        """Test each ready model that has not answered its example yet, and set the table's
        `was_ready` when the container becomes ready.
        Return the seconds until the next test, or 0 if there is nothing to test until the table
        changes."""
        models = self.manager.models()
        pending = [
            entry
            for entry in models.current.values()
            if entry.state == READY and not entry.answered
        ]
        pauses = [self._test(entry, models.server) for entry in pending]
        self.manager.write(
            lambda table: replace(table, was_ready=table.was_ready or not table.unready())
        )
        return max(pauses, default=0.0)

    def _test(self, entry: Entry, server: int) -> float:
        """Test the model with its example, and record the result. `server` is tritonserver's
        process id before the test. Return the seconds until the model must be tested again, or 0
        if it need not be."""

        def with_answer(models: Models) -> Models:
            """Return the table with the model marked as having answered its example. Return it
            unchanged if the model or tritonserver has been replaced."""
            latest = models.latest(entry)
            if models.server != server or latest is None:
                return models
            reason = "" if latest.state == READY else latest.reason
            return models.updated(entry, answered=True, reason=reason)

        try:
            self._ask(entry.name)
        except ModelFailed as err:
            self.policy.handle_failure(entry, err.reason)
        except ServingError as err:
            self.manager.update(entry, reason=str(err))
            return NO_VERDICT
        except OSError as err:
            log.debug("no worker answers: %s", err)
            return NO_WORKER
        else:
            self.manager.write(with_answer)
        return 0.0

    def _ask(self, name: str) -> None:
        """Have a worker test the model with its example. Raise ModelFailed if the model fails,
        another ServingError if the worker could not tell whether the model works, and OSError if no
        worker responds."""
        settings = self.manager.settings
        path = f"/examples/{quote(name, safe='')}/answer"
        headers = {"X-Request-Id": "example"}
        status, body = ask(
            settings.gunicorn_socket, path, settings.request_timeout, "POST", headers, most=None
        )
        answer = json.loads(body)
        if status != HTTPStatus.OK:
            raise ServingError(answer["error"])
        if answer["reason"]:
            raise ModelFailed(name, answer["reason"])
