"""Find and make the client of a model: the code that turns instances into tensors and outputs into predictions."""

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import clients
from clients.base import Model, ModelClient
from serving.errors import ConfigError

OWN_CLIENT = "_model_client_"  # the module of a model's own client.py, before the model's name
ALSO_CALLED = {"image-classification": "resnet", "object-detection": "yolov5"}  # the client, by what it does


def make_client(model: Model) -> ModelClient | None:
    """Make the model's client: its folder's client.py, else the one that its `client` parameter names, else the one
    named as the model or its folder, else none. Raise what the client's code raises, or ConfigError."""
    module = _client_module(model)
    if module is None:
        return None
    client = getattr(module, "Client", None)
    if not (isinstance(client, type) and issubclass(client, ModelClient)):
        raise ConfigError(module.__file__, "defines no class Client(ModelClient)")
    return client(model)


def _client_module(model: Model) -> ModuleType | None:
    own_file = model.path / "client.py"
    if own_file.is_file():
        return _import_file(f"{OWN_CLIENT}{model.name}", own_file)
    if named := family_name(model.parameters.get("client", "")):
        if named not in families():
            raise ConfigError("", f"there is no client '{named}'", f"the clients are {', '.join(families())}")
        return importlib.import_module(f"clients.{named}")
    names = (model.name, model.path.name)  # an archive's folder has another name than Triton's model
    return next((importlib.import_module(f"clients.{name}") for name in names if name in families()), None)


def families() -> list[str]:
    """Return the names of the clients in this project: the modules of clients/, without its base."""
    names = (module.name for module in pkgutil.iter_modules(clients.__path__))
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def family_name(name: str) -> str:
    """Return the module of the client called `name`, which may be an alias."""
    return ALSO_CALLED.get(name, name.replace("-", "_"))


def family(name: str) -> type[ModelClient]:
    """Return the class of one of these clients."""
    client: type[ModelClient] = importlib.import_module(f"clients.{name}").Client
    return client


def _import_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(path, "cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
