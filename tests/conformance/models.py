"""Make the models and archives of the rows."""

from pathlib import Path

from tests.support.harness import make_both_scales, make_identity, make_python_model
from tests.support.streaming_models import TALKER, make_echo, make_teller

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("TEXT")
"""
PORT = '%sput { name: "text_%sput" data_type: TYPE_STRING dims: [1] }\n'
TEXTS = PORT % ("in", "in") + PORT % ("out", "out")


def make_single_repository(repository: Path) -> None:
    """Make `scale`, `identity`, `echo`, `teller`, and the ensemble `chain` of the models `first`
    and `second`."""
    make_identity(repository)
    make_both_scales(repository)
    make_echo(repository)
    make_teller(repository)
    make_ensemble(repository)


def make_talker(folder: Path) -> None:
    """Make a model that returns its input text, or fails if the text says so."""
    make_python_model(folder, TEXTS, TALKER)


def make_broken(folder: Path, text: str) -> None:
    """Make a model that fails to load with this error text."""
    make_python_model(folder, TEXTS, BROKEN.replace("TEXT", text))


def make_ensemble(folder: Path, parts: tuple[str, str] = ("first", "second")) -> None:
    """Make `chain`, an ensemble of two talkers."""
    for part in parts:
        make_talker(folder / part)
    steps = ",\n".join(
        f'{{ model_name: "{part}" model_version: -1\n'
        f'input_map {{ key: "text_input" value: "{source}" }} output_map {{ key: '
        f'"text_output" value: "{target}" }} }}'
        for part, source, target in (
            (parts[0], "text_input", "between"),
            (parts[1], "between", "text_output"),
        )
    )
    config = f'platform: "ensemble"\n{TEXTS}ensemble_scheduling {{ step [ {steps} ] }}\n'
    (folder / "chain" / "1").mkdir(parents=True)
    (folder / "chain" / "config.pbtxt").write_text(config)
