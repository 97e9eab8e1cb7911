"""Computes a scenario's answers without any code of this project. The bare server, the other
servers and the limit (the networks alone, without a server) do this work. The answers of all
servers are compared with the results."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import tokenizers

Array = np.ndarray[Any, Any]
# thresholds from YOLOv4-tiny's publisher
CONFIDENCE = 0.40
OVERLAP = 0.45


class Model:
    """Converts a request's body to tensors, and the outputs to a prediction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def session(self, threads: int) -> onnxruntime.InferenceSession:
        """Create the network's session. Each of its runs uses `threads` threads, which do not spin
        while they wait."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(str(next(self.folder.glob("*/model.onnx"))), options)

    def prepare(self, body: bytes) -> dict[str, Array]:
        """Return the network's inputs for a body, with a batch dimension of 1."""
        raise NotImplementedError

    def finish(self, outputs: dict[str, Array]) -> Any:
        """Return one prediction that can be written as JSON."""
        raise NotImplementedError

    def labels(self) -> list[str]:
        return (self.folder / "labels.txt").read_text(encoding="utf-8").splitlines()


def _photo(body: bytes) -> Array:
    decoded: Array = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
    return decoded[:, :, ::-1]


class Photo(Model):
    """EfficientNet-Lite0. It takes a centre crop, whose side is 0.875 of the photo's shorter side,
    resized to 224 pixels with bicubic interpolation, as UINT8. It predicts the best class."""

    def prepare(self, body: bytes) -> dict[str, Array]:
        image = _photo(body)
        height, width = image.shape[:2]
        side = round(min(height, width) * 0.875)
        top = (height - side) // 2
        left = (width - side) // 2
        square = image[top : top + side, left : left + side]
        crop = cv2.resize(square, (224, 224), interpolation=cv2.INTER_CUBIC)
        return {"images": np.ascontiguousarray(crop.transpose(2, 0, 1)[None])}

    def finish(self, outputs: dict[str, Array]) -> Any:
        logits = outputs["logits"][0]
        powers = np.exp(logits - logits.max())
        scores = powers / powers.sum()
        best = int(scores.argmax())
        return {"label": self.labels()[best], "score": float(scores[best])}


class Boxes(Model):
    """YOLOv4-tiny. It takes an image letterboxed to 416 pixels, and predicts labels and scores,
    best first. Its non-maximum suppression is OpenCV's."""

    def prepare(self, body: bytes) -> dict[str, Array]:
        image = _photo(body)
        ratio = 416 / max(image.shape[:2])
        resized = cv2.resize(image, None, fx=ratio, fy=ratio, interpolation=cv2.INTER_LINEAR)
        padded = np.full((416, 416, 3), 114, np.uint8)
        height, width = resized.shape[:2]
        top = (416 - height) // 2
        left = (416 - width) // 2
        padded[top : top + height, left : left + width] = resized
        return {"images": np.ascontiguousarray(padded.transpose(2, 0, 1)[None])}

    def finish(self, outputs: dict[str, Array]) -> Any:
        rows = outputs["output0"][0]  # x, y, width, height, confidence, and a score per class
        merits = rows[:, 4:5] * rows[:, 5:]
        kept = merits.max(1) > CONFIDENCE
        rows = rows[kept]
        merits = merits[kept]
        classes = merits.argmax(1).tolist()
        scores = merits.max(1).tolist()
        sides = rows[:, 2:4]
        boxes = np.concatenate([rows[:, :2] - sides / 2, sides], axis=1).tolist()
        chosen = cv2.dnn.NMSBoxesBatched(boxes, scores, classes, CONFIDENCE, OVERLAP)
        names = self.labels()
        best = np.ravel(chosen).tolist()
        return [{"label": names[classes[index]], "score": scores[index]} for index in best]


class Sentence(Model):
    """all-MiniLM-L6-v2. It predicts the embedding of a text, normalized to length 1."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tokenizer = tokenizers.Tokenizer.from_file(
            str(folder / "tokenizer" / "tokenizer.json")
        )
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def prepare(self, body: bytes) -> dict[str, Array]:
        ids = np.array([self.tokenizer.encode(body.decode()).ids], np.int64)
        return {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }

    def finish(self, outputs: dict[str, Array]) -> Any:
        embedding = outputs["sentence_embedding"][0]
        return {"embedding": (embedding / np.linalg.norm(embedding)).tolist()}


class Floats(Model):
    """Computes the mean of a row of floats. The row is sent as KServe's JSON or as raw bytes."""

    def prepare(self, body: bytes) -> dict[str, Array]:
        if body[:1] == b"{":
            row = json.loads(body)["inputs"][0]["data"]
        else:
            row = np.frombuffer(body, np.float32)
        return {"x": np.array(row, np.float32)[None]}

    def finish(self, outputs: dict[str, Array]) -> Any:
        return outputs["y"].ravel().tolist()


BUNDLED: dict[str, type[Model]] = {"efficientnet": Photo, "yolov4_tiny": Boxes, "bert": Sentence}
KINDS: dict[str, type[Model]] = {**BUNDLED, "mean": Floats}


def predict(model: Model, session: onnxruntime.InferenceSession, body: bytes) -> Any:
    """Return the prediction for a body, computed in this process."""
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, model.prepare(body))
    return model.finish(dict(zip(names, outputs, strict=True)))
