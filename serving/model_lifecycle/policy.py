"""Defines the interface of a policy, which decides when models are loaded and unloaded. The Manager
then loads and unloads them."""

from abc import ABC, abstractmethod

from serving.errors import NotFound
from serving.model_lifecycle.manager import Manager
from serving.model_status.models import Entry
from serving.model_status.states import Event

NO_LOADS = (
    "models are loaded and unloaded by a call only with SAGEMAKER_MULTI_MODEL=true or "
    "SERVE_MODELS=on-demand"
)


class Policy(ABC):
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.settings = manager.settings

    @abstractmethod
    def step(self) -> None:
        """Do what is due, such as replacing models whose folders have changed, or repeating unloads
        that timed out. Called every second."""

    def load(self, name: str, url: str, target: str) -> None:
        """Load the archive at `url`. `name` is the platform's name for the model, and `target` is
        the name that callers use. Raise a ServingError."""
        raise NotFound(NO_LOADS)

    def unload(self, name: str) -> None:
        """Unload the model that `load` loaded as `name`. Raise a ServingError."""
        raise NotFound(NO_LOADS)

    def want(self, name: str) -> None:
        """Begin to load a model for which a call waits. Raise a ServingError."""
        raise NotFound(NO_LOADS)

    def known(self) -> dict[str, int | None]:
        """Return the names of models that a call could load, each with the size of its archive or
        folder in bytes, or None if the size is not known."""
        return {}

    def handle_failure(self, entry: Entry, reason: str) -> None:
        """Record that Triton could not load the model, or that the model failed on its example. If
        the container was never ready, its startup fails."""
        self.manager.move(entry, Event.LOAD_FAILED, reason=reason)


class AtStart(Policy):
    """The policy that loads models only at startup (preparation/survey.py)."""

    def step(self) -> None:
        """Do nothing: the served models never change."""
