"""A model that Triton has loaded, with its client, and with the model that follows it in a chain.

A chain is two models as one: config.pbtxt's parameter `then` names a second one, and each piece that the first one's
client finds in an instance (ModelClient.pieces) is an instance of the second, whose answers go into the prediction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clients.base import Model, ModelClient, Parameter
from serving.errors import InvalidRequest, ModelNotReady
from serving.inference.sessions import Sequencing

THEN = "then"  # the parameter in config.pbtxt that names the second model of a chain


@dataclass(frozen=True)
class ServedModel:
    """A model that Triton has loaded, and its client; without a client it serves tensors only.

    `client_error` says why the client that the model names could not be made; `sequencing` is set for a
    model whose requests belong to sequences; `then` is the model that is asked about what this one finds (a chain).
    """

    model: Model
    client: ModelClient | None = None
    client_error: str = ""
    sequencing: Sequencing | None = None
    then: "ServedModel | None" = None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a caller may set, of the client and of the one that follows; none without a client."""
        own = self.client.parameters if self.client else ()
        names = {parameter.name for parameter in own}
        return own + tuple(p for p in (self.then.parameters if self.then else ()) if p.name not in names)

    def read_parameters(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The client's parameters, checked, and those given for the model that follows; raises InvalidRequest.

        One of a name that both models have counts for both."""
        client = self.require_client()
        if self.then is None:
            self._check_alone()
            return client.read_parameters(given), {}
        names = {parameter.name for parameter in self.parameters}
        if unknown := sorted(set(given) - names):
            raise InvalidRequest(
                f"unknown parameter '{unknown[0]}'; model '{self.model.name}' takes: {', '.join(sorted(names))}"
            )
        later = _of(self.then.parameters, given)
        self.then.read_parameters(later)
        return client.read_parameters(_of(client.parameters, given)), later

    def _check_alone(self) -> None:
        """An archive is one model, and the platform does not know that it needs another one."""
        if name := self.model.parameters.get(THEN):
            raise InvalidRequest(
                f"model '{self.model.name}' asks '{name}' about what it finds, and in multi-model mode models do not "
                "call one another: serve both without SAGEMAKER_MULTI_MODEL"
            )

    def describe(self) -> dict[str, Any]:
        """What GET /models says of it."""
        described: dict[str, Any] = {
            "client": _client_name(self.client),
            "max_batch_size": self.model.max_batch_size,
            "inputs": [asdict(spec) for spec in self.model.inputs],
            "outputs": [asdict(spec) for spec in self.model.outputs],
        }
        if self.client:
            described["instance"] = self.client.codec.expected
            described["parameters"] = [
                {"name": p.name, "default": self._default(p.name), "expected": p.expected(), "help": p.help}
                for p in self.parameters
            ]
        if self.then:
            described["then"] = self.then.model.name
        return described | ({"error": self.client_error} if self.client_error else {})

    def _default(self, name: str) -> Any:
        own = self.client.defaults if self.client else {}
        return own[name] if name in own or self.then is None else self.then._default(name)

    def require_client(self) -> ModelClient:
        """The client; raises ModelNotReady or InvalidRequest that says what to send instead."""
        if self.client_error:
            raise ModelNotReady(self.client_error)
        if self.client is None:
            raise InvalidRequest(
                f"model '{self.model.name}' has no client, so it takes tensors: send KServe v2 JSON "
                '{"inputs": [{"name", "shape", "datatype", "data"}]}, its binary form, or application/x-npy'
            )
        return self.client


def _of(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in given.items() if name in names}


def _client_name(client: ModelClient | None) -> str | None:
    """The module's name; client.py when it is the model folder's own."""
    if client is None:
        return None
    module = type(client).__module__
    return module.removeprefix("clients.") if module.startswith("clients.") else "client.py"
