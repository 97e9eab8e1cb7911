"""Makes small versions of what users bring: for each model that docs/models.md builds, the files
that its row names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import torch
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType

from build_engines.request import Request
from tests.build_engines import trained, yolov5_release
from tests.build_engines.models import exported, save_classifier, save_constants, save_scale
from tests.clients.text_models import save_checkpoint, save_tokenizer
from tests.clients.vision_models import images, save_vision
from tests.support.harness import save_graph

FOLDER = "FOLDER"  # the page's placeholder for a checkpoint's folder
NAMES = "{0: 'cat', 1: 'dog'}"
BOX = [30, 30, 20, 24]  # centre, width and height


def text(folder: Path, task: str, *labels: str, family: str = "bert") -> None:
    names = dict(enumerate(labels or ("bad", "good")))
    ids = {name: index for index, name in names.items()}
    save_checkpoint(folder / FOLDER, task, family, id2label=names, label2id=ids)


def text_file(folder: Path) -> None:
    text(folder, "text-classification")
    exported(Request("own"), folder / FOLDER, folder / "made")
    (folder / "made/1/model.onnx").rename(folder / "opinions.onnx")


def classifier(folder: Path) -> None:
    save_classifier(folder / "birds.onnx")
    (folder / "birds.txt").write_text("hen\nowl\ntit\n")


def checkpoint(folder: Path) -> None:
    release = yolov5_release.random_release(2)
    release.names = ["cat", "dog"]
    for head in release.model[-1].m:  # so that the network detects something
        torch.nn.init.constant_(head.bias, 2)
    yolov5_release.save(release, folder / "best.pt")


def detector(folder: Path) -> None:
    save_constants(folder / "yolo11n.onnx", {"output0": columns([*BOX, 0.9, 0.1])}, names=NAMES)


def segmentation(folder: Path) -> None:
    outputs = {"output0": columns([*BOX, 0.9, 0.1, *[1] * 32]), "output1": np.ones((32, 16, 16))}
    save_constants(folder / "yolo11n-seg.onnx", outputs, names=NAMES)


def pose(folder: Path) -> None:
    outputs = {"output0": columns([*BOX, 0.9, *[20, 20, 0.8] * 17])}
    save_constants(
        folder / "yolo11n-pose.onnx", outputs, names="{0: 'person'}", kpt_shape="[17, 3]"
    )


def columns(box: list[float]) -> Any:
    """Return a detector's output with 100 copies of this box."""
    return np.tile(np.array(box)[:, None], (1, 100))


def people(folder: Path) -> None:
    rows_of(trained.mixed(folder), folder, "churn.joblib")


def xgboost(folder: Path) -> None:
    rows_of(trained.xgboosts(folder), folder, "irises.json")


def lightgbm(folder: Path) -> None:
    rows_of(trained.lightgbms(folder), folder, "prices.txt")


def converted(folder: Path) -> None:
    model = trained.odd_classes(folder)
    types = [("X", FloatTensorType([None, 4]))]
    onnx.save(
        to_onnx(model.model, initial_types=types, target_opset={"": 17, "ai.onnx.ml": 3}),
        model.file,
    )
    rows_of(model, folder, "plants.onnx")
    (folder / "names.txt").write_text("oak\nrose\nfern\n")


def rows_of(model: trained.Trained, folder: Path, name: str) -> None:
    model.file.rename(folder / name)
    pd.DataFrame(model.rows[:3]).to_csv(folder / "rows.csv", index=False, header=False)


class Total(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True)


def torchscript(folder: Path) -> None:
    torch.jit.script(Total()).save(str(folder / "scorer.pt"))


TOKENS = """
platform: "onnxruntime_onnx"
max_batch_size: 4
input { name: "input_ids" data_type: TYPE_INT64 dims: [-1] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [-1] }
input { name: "token_type_ids" data_type: TYPE_INT64 dims: [-1] }
output { name: "logits" data_type: TYPE_FP32 dims: [-1] }
parameters { key: "client" value { string_value: "text" } }
parameters { key: "task" value { string_value: "text-classification" } }
parameters { key: "pad_to_multiple_of" value { string_value: "8" } }
"""


def make_tokens(folder: Path) -> None:
    """Make a classifier of texts that requires all inputs, as NVIDIA's backends do. Its scores are
    the ids, the mask and the types that it gets."""
    save_graph(
        """tokens (int64[n, length] input_ids, int64[n, length] attention_mask,
        int64[n, length] token_type_ids) => (float[n, size] logits) {
        joined = Concat <axis = 1> (input_ids, attention_mask, token_type_ids)
        logits = Cast <to = 1> (joined)
    }""",
        folder / "1/model.onnx",
    )
    (folder / "config.pbtxt").write_text(TOKENS)
    save_tokenizer(folder / "tokenizer", "pieces")


MAKERS: Mapping[str, Callable[[Path], object]] = {
    "sentences": lambda folder: text(folder, "embedding"),
    "words": lambda folder: text(folder, "fill-mask"),
    "reviews": lambda folder: text(folder, "text-classification"),
    "entities": lambda folder: text(
        folder, "token-classification", "O", "B-CAT", "I-CAT", family="roberta"
    ),
    "answers": lambda folder: text(folder, "question-answering", family="distilbert"),
    "topics": lambda folder: text(
        folder, "zero-shot-classification", "contradiction", "neutral", "entailment"
    ),
    "ranks": lambda folder: text(folder, "text-ranking", "LABEL_0", family="xlm-roberta"),
    "opinions": text_file,
    "flowers": lambda folder: save_vision(folder / FOLDER, "vit"),
    "looks": lambda folder: save_vision(folder / FOLDER, "dinov2"),
    "streets": lambda folder: save_vision(folder / FOLDER, "segformer"),
    "animals": lambda folder: save_vision(folder / FOLDER, "yolos"),
    "birds": classifier,
    "pets": checkpoint,
    "things": detector,
    "masks": segmentation,
    "poses": pose,
    "churn": people,
    "irises": xgboost,
    "prices": lightgbm,
    "plants": converted,
    "doubles": lambda folder: save_scale(folder / "doubles.onnx"),
    "scorer": torchscript,
}


def make(name: str, folder: Path) -> None:
    """Make a picture, and the files that the model's row names."""
    folder.mkdir()
    # a fixed image, because some images of noise contain no animal
    images()[1].resize((96, 64)).save(folder / "cat.jpg")
    MAKERS[name](folder)
