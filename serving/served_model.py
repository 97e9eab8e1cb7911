"""A model that Triton has loaded, with its client."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clients.base import Model, ModelClient
from serving.errors import InvalidRequest, ModelFailed
from serving.sessions import Sequencing


@dataclass(frozen=True)
class ServedModel:
    """A model that Triton has loaded, and its client; without a client it serves tensors only.

    `client_error` says why the client that the model names could not be made; `sequencing` is set for a model whose
    requests belong to sequences, and `parts` names the models that an ensemble is made of. `engine` is Triton's
    backend, `engine_reason` why it was chosen where there was a choice (repository/engines.py). `labels` has the
    class names of the outputs whose label_filename in config.pbtxt names a file. `batched_parts` says that a part of
    an ensemble has a batch dimension.
    """

    model: Model
    client: ModelClient | None = None
    client_error: str = ""
    sequencing: Sequencing | None = None
    parts: tuple[str, ...] = ()
    engine: str = ""
    engine_reason: str = ""
    labels: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    batched_parts: bool = False

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def names(self) -> tuple[str, ...]:
        """Triton's, and those of its parts."""
        return (self.name, *self.parts)

    def require_client(self) -> ModelClient:
        """The client; raises ModelFailed, or InvalidRequest that says what to send instead."""
        if self.client_error:
            raise ModelFailed(self.name, self.client_error)
        if self.client is None:
            raise InvalidRequest(
                f"model '{self.name}' has no client, so it takes tensors: send KServe v2 JSON "
                '{"inputs": [{"name", "shape", "datatype", "data"}]}, its binary form, or application/x-npy'
            )
        return self.client

    def example(self) -> bytes:
        """One instance as a caller would post it: the folder's example.*, else the client's own."""
        own = self.example_file()
        return own.read_bytes() if own else self.require_client().example

    def example_file(self) -> Path | None:
        """The folder's own."""
        return next(iter(sorted(self.model.path.glob("example.*"))), None)

    def known_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that are parameters of the client; the rest is the caller's own."""
        names = {parameter.name for parameter in self.client.parameters} if self.client else set()
        return {name: value for name, value in given.items() if name in names}

    def describe(self) -> dict[str, Any]:
        """What GET /models says of it."""
        described: dict[str, Any] = {
            "engine": self.engine,
            **({"engine_reason": self.engine_reason} if self.engine_reason else {}),
            "client": _client_name(self.client),
            "max_batch_size": self.model.max_batch_size,
            "inputs": [asdict(spec) for spec in self.model.inputs],
            "outputs": [asdict(spec) for spec in self.model.outputs],
        }
        if self.client:
            described["codec"] = self.client.codec.name
            described["instance"] = self.client.codec.expected
            described |= {"columns": self.client.columns} if self.client.columns else {}
            schemas = self.client.parameter_schemas()
            described["parameters"] = [
                {
                    "name": p.name,
                    "default": _plain(self.client.defaults[p.name]),
                    "expected": p.expected(),
                    "help": p.help,
                    "schema": schemas[p.name],
                }
                for p in self.client.parameters
            ]
        return described | ({"error": self.client_error} if self.client_error else {})


def _plain(value: Any) -> Any:
    """Return a tuple as a list, because orjson does not write subclasses of tuple, such as Names."""
    return list(value) if isinstance(value, tuple) else value


def _client_name(client: ModelClient | None) -> str | None:
    """The module's name; client.py when it is the model folder's own."""
    if client is None:
        return None
    module = type(client).__module__
    return module.removeprefix("clients.") if module.startswith("clients.") else "client.py"
