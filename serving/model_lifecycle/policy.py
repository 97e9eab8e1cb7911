"""A policy says when models are loaded and unloaded. The manager does it."""

from abc import ABC, abstractmethod

from serving.errors import NotFound
from serving.model_lifecycle.manager import Manager
from serving.model_status.states import Event
from serving.model_status.table import Entry

NO_LOADS = "models are loaded and unloaded by a call only with SAGEMAKER_MULTI_MODEL=true"


class Policy(ABC):
    def __init__(self, manager: Manager) -> None:
        self.manager, self.settings = manager, manager.settings

    @abstractmethod
    def step(self) -> None:
        """Look for changes. It is called every second."""

    def load(self, name: str, url: str, target: str) -> None:
        """Load a model, because a call asks for it. Raise a ServingError."""
        raise NotFound(NO_LOADS)

    def unload(self, name: str) -> None:
        """Unload a model, because a call asks for it. Raise a ServingError."""
        raise NotFound(NO_LOADS)

    def failed(self, entry: Entry, reason: str) -> None:
        """Note that Triton did not load the model, or that its example failed. A first start ends
        then."""
        self.manager.move(entry, Event.LOAD_FAILED, reason=reason)


class AtStart(Policy):
    """The policy that loads models only at the start (preparation/survey.py)."""

    def step(self) -> None:
        """Look for nothing: what is served stays."""
