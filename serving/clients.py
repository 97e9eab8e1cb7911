"""Finds and creates a model's client, the code that turns instances into tensors and outputs into
predictions.

The first of these that exists is the model's client:

    REPOSITORY/MODEL/client.py      the model's own
    REPOSITORY/clients/NAME.py      one shared by models of the repository
    clients/NAME.py                 one of this project's

NAME is the parameter `client` in config.pbtxt or, if that is missing, the name of the model. Each
of these modules defines a class `Client`.
"""

import importlib
import importlib.util
import pkgutil
import sys
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from itertools import count
from pathlib import Path

import clients
from clients.base import Model, ModelClient
from serving.errors import ConfigError
from serving.repository.layout import CLIENT, CLIENTS, own_client

# Clients in a model repository are imported as packages with this name and a number.
OWN_PACKAGE = "_model_clients_"
_numbers = count()


def make_client(model: Model) -> ModelClient | None:
    """Create the model's client. Return None if the model has no client. Raise ConfigError if the
    client that config.pbtxt names does not exist, or if a client file does not define a client.
    Raise any exception that the client's code raises."""
    named = model.parameters.get("client", "")
    if file := own_client(model.path, named):
        return _imported(file)(model)
    ours = (*client_names(), *clients.CLIENT_ALIASES)
    # a model from an archive has a name in Triton that differs from its folder's name
    names = [module_name(named)] if named else [model.name, model.path.name]
    for name in names:
        if name in ours:
            return client_class(name)(model)
    if named:
        raise ConfigError(
            "",
            f"there is no client '{named}'",
            f"the clients are {', '.join(ours)}; one of your own is {CLIENTS}/NAME.py beside the "
            "model's folder",
        )
    return None


def _imported(file: Path) -> type[ModelClient]:
    """Import a client file from a model repository, and return its class `Client`. The file is
    imported as part of a new package, so that it can import the files next to it. Raise ConfigError
    if it does not define the class."""
    folder = str(file.parent)
    spec = ModuleSpec(f"{OWN_PACKAGE}{next(_numbers)}", None, is_package=True)
    spec.submodule_search_locations = [folder]
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    # use a new finder, because the old one may have cached a list of files that has changed
    sys.path_importer_cache[folder] = FileFinder(folder, (_Source, [".py"]))
    module = importlib.import_module(f"{spec.name}.{file.stem}")
    client = getattr(module, "Client", None)
    if not (isinstance(client, type) and issubclass(client, ModelClient)):
        raise ConfigError(file, "defines no class Client(ModelClient)")
    return client


def forget(client: ModelClient) -> None:
    """Remove from sys.modules the modules of a client that came from a model repository."""
    package = type(client).__module__.partition(".")[0]
    if package.startswith(OWN_PACKAGE):
        for name in list(sys.modules):
            if name.partition(".")[0] == package:
                sys.modules.pop(name, None)


def source_of(client: ModelClient) -> str:
    """Return where the client comes from: its name if it is one of this project's clients, or its
    file in the model repository (client.py or clients/NAME.py)."""
    package, _, name = type(client).__module__.partition(".")
    if not package.startswith(OWN_PACKAGE):
        return name
    file = f"{name}.py"
    return file if file == CLIENT else f"{CLIENTS}/{file}"


def client_names() -> list[str]:
    """Return the names of this project's clients, one for each task. These are the modules in
    clients/, except base.py, modules that only give a client a second name, and names that begin
    with an underscore."""
    others = {"base", *clients.CLIENT_ALIASES}
    modules = (module.name for module in pkgutil.iter_modules(clients.__path__))
    return sorted(name for name in modules if name not in others and name[0] != "_")


def module_name(name: str) -> str:
    """Return the module name of this project's client `name`, which may contain hyphens."""
    return name.replace("-", "_")


def client_class(name: str) -> type[ModelClient]:
    """Return the class of one of this project's clients."""
    client: type[ModelClient] = importlib.import_module(f"clients.{name}").Client
    return client


class _Source(SourceFileLoader):
    """Imports a module without using cached bytecode, which could belong to a file with the same
    path, time and size from another archive."""

    def path_stats(self, path: str) -> dict[str, object]:
        """Raise OSError, so that Python neither reads nor writes cached bytecode."""
        raise OSError(path)
