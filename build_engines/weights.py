"""Finds the weights that --weights names (a file, a folder, or a model on the Hugging Face hub),
and recognizes their kind."""

import json
import re
import zipfile
from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from build_engines import onnx_reader
from build_engines.build_record import digest, digest_of_files
from build_engines.errors import BuildError, UsageError, first_line
from build_engines.request import Request

# Kinds of weights, as error messages name them
OWN = "a recipe's own weights"  # they come with the project or a Python package
ONNX_FILE = "an ONNX file"
TORCHSCRIPT_FILE = "a TorchScript file"
CHECKPOINT = "a folder as save_pretrained writes it"
TENSORS = "a file of torch.save"
PICKLE = "a pickle"
XGBOOST = "a file of XGBoost"
LIGHTGBM = "a file of LightGBM"
PICKLES = (".joblib", ".pkl", ".pickle")
FIRST_BYTES = 4096  # bytes of a file, enough to identify XGBoost's and LightGBM's files
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CHECKPOINT_SUFFIXES = (".json", ".safetensors", ".bin", ".txt", ".model")
TENSORFLOW = "tf2onnx makes an ONNX file of it: python -m tf2onnx.convert"
# for files that cannot be built: endings of the file's name -> what to do with the file
REMEDIES_FOR_FILES = {
    (".h5", ".keras"): f"{TENSORFLOW} --keras FILE --output model.onnx",
    (".pb",): f"{TENSORFLOW} --graphdef FILE --inputs … --outputs … --output model.onnx",
    (".tflite",): f"{TENSORFLOW} --tflite FILE --output model.onnx",
    (".plan", ".engine"): (
        "a TensorRT plan needs no build: it is model.plan of a model folder (docs/build_engines.md)"
    ),
    (".safetensors", ".bin"): (
        "weights alone do not describe their network: name the folder that also has config.json"
    ),
    (".pt2",): (
        "torch makes an ONNX file of it, with onnxscript: "
        "torch.onnx.export(torch.export.load('FILE'), f='model.onnx')"
    ),
    (".ckpt",): "export its network: torch.onnx.export(network, example, 'model.onnx')",
    (".mar",): "TorchServe's archive is a zip file: unpack it and build the model that is in it",
    (".cbm",): "CatBoost writes ONNX: model.save_model('model.onnx', format='onnx')",
    (".gguf",): "no backend here runs llama.cpp's models",
    (".tar.gz", ".tgz"): (
        "unpack it; a model.tar.gz of model folders is served as it is (docs/deploy.md)"
    ),
    (".xml",): (
        "OpenVINO's model needs no build: it is model.xml of a model folder (docs/backends.md)"
    ),
}
# for folders that cannot be built: pattern of a file in the folder -> what to do with the folder
REMEDIES_FOR_FOLDERS = {
    "config.pbtxt": "it is a model folder, which needs no build: put it into the model repository",
    "*/config.pbtxt": (
        "it is a model repository, which needs no build: SERVE_MODEL_REPOSITORY names it"
    ),
    "saved_model.pb": f"{TENSORFLOW} --saved-model FOLDER --output model.onnx",
    "model_index.json": (
        "pipelines of diffusers are not built: bring a model.py for Triton's Python backend"
    ),
    "adapter_config.json": (
        "merge the adapter into its network first: merge_and_unload(), save_pretrained()"
    ),
    "*.onnx": "name the ONNX file that is in it",
}
# names that end like this are taken for files; others, such as "owner/name-v1.5", may be HUB-IDs
FILE_ENDS = (".onnx", ".pt", ".pth", ".json", ".ubj", ".txt", *PICKLES, *chain(*REMEDIES_FOR_FILES))
HUB_FILES = (  # patterns of the files that are fetched from the hub
    "config.json *.safetensors tokenizer.json tokenizer_config.json special_tokens_map.json "
    "vocab.txt vocab.json merges.txt *.model preprocessor_config.json processor_config.json "
    "*_Pooling/config.json *_Dense/config.json modules.json sentence_*_config.json "
    "config_sentence_transformers.json"
)


class Weights:
    """Weights in a file or folder, or a recipe's own weights if there is no `path`. The graph of an
    ONNX file and the config.json of a folder are parsed only once."""

    def __init__(self, path: Path | None) -> None:
        """Recognize the kind of weights. If a file or folder of this kind cannot be built, raise a
        BuildError that says what can be built or what to do instead."""
        self.kind = kind_of(path) if path else OWN
        self._path = path

    @property
    def path(self) -> Path:
        """Return the path. Raise BuildError for a recipe's own weights, which have none."""
        if self._path is None:
            raise BuildError("name weights: --weights PATH or HUB-ID")
        return self._path

    @property
    def digests(self) -> dict[str, str]:
        """Return {"weights": SHA-256}, or {} for a recipe's own weights. The digest is that of the
        file, including the other files that an ONNX file names, or of the folder's weights and
        configuration. Raise BuildError if a file that an ONNX file names cannot be used."""
        if self._path is None:
            return {}
        if self.kind == ONNX_FILE:
            folder = self._path.parent
            files = [self._path, *onnx_reader.external_files(self.graph, folder)]
            return {"weights": digest_of_files(folder, files)}
        return {"weights": digest_of_path(self._path)}

    @cached_property
    def graph(self) -> Any:
        """Return an ONNX file's model, without weights from other files. Raise BuildError if the
        file cannot be read as ONNX."""
        return onnx_reader.read(self.path)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Return the content of config.json in a checkpoint's folder. Raise BuildError if it is not
        a JSON object."""
        return read_object(self.path / "config.json")

    def has(self, *names: str) -> bool:
        """Return whether the weights are a checkpoint's folder that has at least one of these
        files."""
        return self.kind == CHECKPOINT and any((self.path / name).is_file() for name in names)

    @property
    def is_image(self) -> bool:
        """Return whether the weights are a checkpoint's folder that has an image processor."""
        return self.has("preprocessor_config.json", "processor_config.json")

    @property
    def architecture(self) -> str:
        """Return the class name of a checkpoint's network, or "" if config.json does not say."""
        return str((self.config.get("architectures") or [""])[0])


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or {} if the file does not exist. Raise BuildError if it
    is not JSON."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as err:
        raise BuildError(f"{path} is not JSON: {first_line(err)}") from err


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist. Raise BuildError if the
    file contains anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise BuildError(f"{path} is not a JSON object")
    return value


def find_weights(request: Request) -> Weights:
    """Return the weights that --weights names or, without this flag, those of the recipe. If the
    flag names a HUB-ID, fetch the weights from the hub. Raise UsageError if it names neither a path
    that exists nor a HUB-ID, and BuildError if the weights cannot be fetched or built."""
    source = request.weights
    if not source:
        return Weights(None)
    path = Path(source).expanduser()
    if path.exists():
        return Weights(path)
    if HUB_ID.fullmatch(source) and not source.endswith(FILE_ENDS):
        return Weights(from_hub(source))
    raise UsageError(
        f"--weights '{source}': there is no such file; it takes a PATH or a HUB-ID (owner/name)"
    )


def kind_of(path: Path) -> str:
    """Return the kind of a file or folder, one of the constants above. Raise BuildError for any
    other kind."""
    if path.is_dir():
        if (path / "config.json").is_file():
            return CHECKPOINT
        raise BuildError(f"there is no config.json in {path}; {_remedy_for_folder(path)}")
    if path.suffix == ".onnx":
        return ONNX_FILE
    if path.suffix in PICKLES:
        return PICKLE
    with path.open("rb") as file:
        head = file.read(FIRST_BYTES)
    if head.startswith(b"tree\n"):
        return LIGHTGBM
    if path.suffix in (".json", ".ubj") and b"learner" in head:
        return XGBOOST
    # torch.export's file is a zip file too
    if zipfile.is_zipfile(path) and path.suffix != ".pt2":
        with zipfile.ZipFile(path) as archive:  # torch puts all files into one folder
            names = {name.partition("/")[2] for name in archive.namelist()}
        if "constants.pkl" in names:
            return TORCHSCRIPT_FILE
        if "data.pkl" in names:
            return TENSORS
    if path.suffix in (".pth", ".pt"):
        return TENSORS
    raise BuildError(
        f"{path} is not one of these: an ONNX file (.onnx), a TorchScript or checkpoint "
        "file (.pt, .pth), a folder as save_pretrained writes it, a model of scikit-learn "
        f"(.joblib, .pkl), XGBoost's model.json, LightGBM's model.txt{_remedy_for_file(path)}"
    )


def _remedy_for_folder(path: Path) -> str:
    for name, remedy in REMEDIES_FOR_FOLDERS.items():
        if any(path.glob(name)):
            return remedy
    return "a checkpoint's folder is what save_pretrained writes"


def _remedy_for_file(path: Path) -> str:
    """Return what to do with the file, after a semicolon, or "" if its kind is unknown."""
    for ends, remedy in REMEDIES_FOR_FILES.items():
        if path.name.endswith(ends):
            return f"; {remedy}"
    return ""


def digest_of_path(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's weights and configuration."""
    if path.is_file():
        return digest(path)
    files = (file for file in path.rglob("*") if file.suffix in CHECKPOINT_SUFFIXES)
    return digest_of_files(path, (file for file in files if file.is_file()))


def from_hub(model: str) -> Path:
    """Fetch a model from the Hugging Face hub, or from the local cache. Return the folder with its
    files. Raise BuildError if the model cannot be fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES.split()))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as err:
        raise BuildError(
            f"{model} cannot be fetched from the Hugging Face hub ({first_line(err)}). On a "
            f"machine that can: `hf download {model} --local-dir FOLDER`; bring FOLDER here "
            "and name it: --weights FOLDER"
        ) from err
