"""A setting that names a file names one in the model's folder."""

from pathlib import Path

import pytest

from clients.base import Model, TensorSpec
from serving.clients import client_class
from serving.errors import InvalidRequest
from tests.clients.text_models import serve

pytestmark = pytest.mark.full

IMAGE = TensorSpec("x", "FP32", (3, 8, 8))
ROW = TensorSpec("x", "FP32", (10,))
CLASSES = TensorSpec("y", "FP32", (10,))
OUTSIDE = ["/{tmp}/secret.txt", "../secret.txt", "sub/../../secret.txt"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize(
    ("client", "setting", "spec"),
    [("resnet", "labels", IMAGE), ("table", "labels", ROW), ("table", "columns", ROW)],
)
def test_refuse_files_of_other_folders(
    tmp_path: Path, client: str, setting: str, spec: TensorSpec, name: str
) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for file in (tmp_path / "secret.txt", folder / "sub/inside.txt"):
        file.write_text("\n".join(map(str, range(10))))

    def make(name: str) -> object:
        return client_class(client)(Model("mine", folder, (spec,), (CLASSES,), 8, {setting: name}))

    assert make("sub/inside.txt")
    with pytest.raises(InvalidRequest, match="secret"):
        make(name.format(tmp=tmp_path))


@pytest.mark.parametrize("setting", ["labels", "tokenizer"])
@pytest.mark.parametrize("name", ["/{tmp}/secret", "../secret"])
def test_read_no_file_outside_a_text_model_s_folder(
    tmp_path: Path, setting: str, name: str
) -> None:
    serve(tmp_path, "text-classification")
    (tmp_path / "secret").symlink_to(
        tmp_path / "bert/tokenizer" if setting == "tokenizer" else __file__
    )
    with pytest.raises(InvalidRequest, match="secret"):
        serve(tmp_path, "text-classification", None, "bert", **{setting: name.format(tmp=tmp_path)})
