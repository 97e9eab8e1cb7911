"""Serves tabular models: for a row of numbers and strings, they return a prediction and, if they
are classifiers, a probability for each class.

The models are ONNX files that skl2onnx and onnxmltools write for scikit-learn, XGBoost and
LightGBM. Each of their inputs is a single column or a matrix of several columns. The results equal
those of the model's own predict and predict_proba.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from clients._cells import DTYPES, Row, array_of, categories_of, check_known, is_number
from clients._labels import names_of
from clients.base import (
    Array,
    Instances,
    Model,
    ModelClient,
    Names,
    Parameter,
    Tensors,
    TensorSpec,
    Values,
)
from serving.codecs import ROW
from serving.errors import DecodingError, InvalidRequest

PREDICTION = "prediction"
REFUSE = "refuse"
NAN = "nan"
CATEGORIES = "categories.json"
BLANK = {"BYTES": "", "BOOL": False}  # cells of the example; numbers are 0
BOOLEANS = ["False", "True"]
LISTED = 20  # number of columns that an error message lists
INDEX = "pandas' index (to_csv(index=False) leaves it out)"
# pandas' names for the column of an index: to_csv writes "", which read_csv calls "Unnamed: 0"
INDEX_NAMES = {"", "Unnamed: 0"}


def _parse_numbers(text: str) -> tuple[int | float, ...]:
    """Return the numbers of a list like 0,1,2.5. Raise ValueError or TypeError if the text is not
    such a list."""
    numbers = orjson.loads(f"[{text}]")
    return tuple(number if type(number) is int else float(number) for number in numbers)


class Client(ModelClient):
    """Predicts `{"prediction": …}`, and for a classifier also `"probabilities": {class: …}`. Other
    outputs of the model are returned under their own names."""

    codec = ROW
    settings = (
        Parameter(
            "columns",
            "columns.txt",
            "file of the columns' names, one per line, in the order of the inputs; default: "
            "columns.txt where there is one, else the inputs' names where each input is one column",
        ),
        Parameter(
            "labels",
            "labels.txt",
            "file of the classes' names, one per line, in the order of the probabilities; "
            "default: labels.txt where there is one",
        ),
        Parameter(
            "classes",
            (),
            "the numbers that the model gives for its classes, in that order; default: 0, 1, 2 …",
            parser=_parse_numbers,
        ),
        Parameter(
            "probabilities",
            "",
            "the output of the probabilities; default: the one whose name has 'prob' in it",
        ),
        Parameter(
            "missing",
            Names((REFUSE,)),
            "which columns take an empty cell or null (NaN; of a text ''): refuse (none), "
            "nan (all), or their numbers from 0, such as 0,3",
        ),
    )

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        if not model.max_batch_size:
            raise InvalidRequest(
                f"model '{model.name}' takes no batches: max_batch_size must be 1 or more"
            )
        self._read_columns()
        self.labels = names_of(model, self.options["labels"], "labels")
        self.scores = self._scores_output()
        self._check_labels()
        self.others = [spec for spec in model.outputs if spec.name != self.scores]
        # the first of them is the prediction, unless another one has that name
        self.others.sort(key=lambda spec: spec.name != PREDICTION)
        self.main_output = self.others[0].name if self.others else ""
        self.predicts_booleans = bool(self.others) and self.others[0].datatype == "BOOL"

    def _read_columns(self) -> None:
        """Set the attributes that describe the columns of each input: their number, their names,
        and which values they accept. Raise InvalidRequest if names, shapes and settings do not
        match."""
        model = self.model
        columns = names_of(model, self.options["columns"], "columns")
        # if there are several inputs, it is not known which of them has how many of the columns
        named = len(columns) if len(model.inputs) == 1 else 0
        widths = [_width(spec, named) for spec in model.inputs]
        if not columns and set(widths) == {1}:
            columns = [spec.name for spec in model.inputs]
        self.column_count = sum(widths)
        if columns and len(columns) != self.column_count:
            raise InvalidRequest(f"{len(columns)} names of columns for {self.column_count} columns")
        if len(set(columns)) < len(columns):
            raise InvalidRequest("two columns have the same name")
        self.columns = tuple(columns)
        self.known_names = frozenset(columns)
        # the columns' names for error messages
        self.shown_names = columns or [f"column {number}" for number in range(self.column_count)]
        self.inputs = list(zip(model.inputs, widths, strict=True))  # with their numbers of columns
        self.takes_empty = self._takes_empty()
        self.absent = tuple("" if takes_empty else "0" for takes_empty in self.takes_empty)
        datatypes: list[str] = []
        for spec, width in self.inputs:
            datatypes += [spec.datatype] * width
        self.example = orjson.dumps([BLANK.get(datatype, 0) for datatype in datatypes])
        self.categories = categories_of(model.file(CATEGORIES), datatypes)

    def _takes_empty(self) -> list[bool]:
        """Return for each column whether it takes empty cells. Raise InvalidRequest if the setting
        `missing` is invalid."""
        missing = self.options["missing"]
        if missing in ((REFUSE,), (NAN,)):
            return [missing == (NAN,)] * self.column_count
        numbers = [str(number) for number in range(self.column_count)]
        if unknown := set(missing) - set(numbers):
            raise InvalidRequest(
                f"missing: '{min(unknown)}' is not {REFUSE}, {NAN} or a column's number below "
                f"{self.column_count}"
            )
        return [number in missing for number in numbers]

    def _scores_output(self) -> str:
        """Return the name of the output that has probabilities, or "" if there is none. Raise
        InvalidRequest if the output that the setting names does not exist."""
        names = [spec.name for spec in self.model.outputs]
        wanted: str = self.options["probabilities"]
        if not wanted:
            return next((name for name in names if "prob" in name.lower()), "")
        if wanted not in names:
            raise InvalidRequest(f"there is no output '{wanted}'; there are {', '.join(names)}")
        return wanted

    def _check_labels(self) -> None:
        """Raise InvalidRequest if the number of labels or classes is not that of the
        probabilities."""
        shapes = {spec.name: spec.shape for spec in self.model.outputs}
        shape = shapes.get(self.scores, ())
        for setting, names in (("labels", self.labels), ("classes", self.options["classes"])):
            if names and shape and shape[-1] not in (-1, len(names)):
                raise InvalidRequest(
                    f"{len(names)} {setting} for the {shape[-1]} columns of output '{self.scores}'"
                )

    def header(self, cells: Sequence[str]) -> Sequence[str] | None:
        """Return the names of the columns if the cells are a header, () if they are a header
        without known names, or None if they are a row. If the model's columns have names, a header
        has at least one of them.

        pandas numbers columns without names 0, 1, 2 …, so these numbers are a header if there are
        three or more columns. If the model's columns have no names and none of them contains
        strings, a row of different words, one for each column, is a header too.
        """
        cells = [self._stored_name(cell) for cell in cells]
        if cells and sorted(cells) == sorted(self.columns):
            return cells
        if self.column_count > 2 and cells == [str(number) for number in range(self.column_count)]:
            return ()
        if any(map(is_number, cells)):
            return None
        if self.columns:
            return cells if self.known_names & set(cells) else None
        words = set(cells) - {"", "True", "False", "true", "false"}
        has_strings = any(spec.datatype == "BYTES" for spec in self.model.inputs)
        is_header = len(words) == len(cells) == self.column_count and not has_strings
        return () if is_header else None

    def prepare(self, instances: Instances, parameters: Values) -> Tensors:
        """Return each input as an array [n, its columns]. Raise a DecodingError that names the row,
        and also the column if one cell is invalid."""
        rows = [self._cells(instance, number) for number, instance in enumerate(instances)]
        arrays = {}
        first = 0
        for spec, width in self.inputs:
            columns = slice(first, first + width)
            first += width
            part = rows if len(self.inputs) == 1 else [row[columns] for row in rows]
            names = self.shown_names[columns]
            array = array_of(part, spec.datatype, self.takes_empty[columns], names)
            check_known(array, self.categories[columns], names)
            arrays[spec.name] = array if spec.shape else array.reshape(len(rows))
        return arrays

    def _cells(self, instance: Row | Mapping[str, Any], number: int) -> Row:
        """Return the row's cells in the order of the columns. Raise DecodingError if the row does
        not have exactly these columns."""
        if isinstance(instance, Mapping):
            return self._cells_by_name(instance, number)
        if len(instance) != self.column_count:
            names = f" ({_listed(self.columns)})" if self.columns else ""
            raise DecodingError(
                f"expected {self.column_count} cells{names}, got {len(instance)}: send neither the "
                f"label nor {INDEX}; in CSV, separate cells by commas and rows by line ends (curl: "
                "--data-binary), and write decimals with a point",
                instance=number,
            )
        return instance

    def _cells_by_name(self, instance: Mapping[str, Any], number: int) -> Row:
        """Return the cells of a row that maps columns to cells, in the order of the columns. Raise
        DecodingError as _cells does, and if the model's columns have no names."""
        if not self.columns:
            raise DecodingError(
                "this model's columns have no names: send a list of cells", instance=number
            )
        named = instance
        if not self.known_names.issuperset(instance):
            named = {self._stored_name(name): cell for name, cell in instance.items()}
        if len(named) < len(instance):
            raise DecodingError("the row names a column twice", instance=number)
        if unknown := named.keys() - self.known_names:
            reason = (
                f"the model has no column {_listed(sorted(unknown))}; its columns are "
                f"{_listed(self.columns)}"
            )
            if unknown <= INDEX_NAMES:
                reason += f"; do not send {INDEX}"
            raise DecodingError(reason, instance=number)
        if absent := [name for name in self.columns if name not in named]:
            raise DecodingError(f"the row has no {_listed(absent)}", instance=number)
        return [named[name] for name in self.columns]

    def _stored_name(self, name: str) -> str:
        """Return the model's name for a column. A caller may write 'mean radius' for 'mean_radius',
        which is how LightGBM stores that name."""
        stored = name.replace(" ", "_")
        is_stored = name not in self.known_names and stored in self.known_names
        return stored if is_stored else name

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> list[Any]:
        """Return the values of all outputs for each row. `main_output` is the prediction."""
        count = len(instances)
        columns: dict[str, list[Any]] = {}
        for spec in self.others:
            is_prediction = spec.name == self.main_output
            array = outputs[spec.name].reshape(count, -1)
            rows = self._rows(array, is_prediction)
            name = PREDICTION if is_prediction else spec.name
            columns[name] = [row[0] if len(row) == 1 else row for row in rows]
        if self.scores:
            columns["probabilities"] = self._by_class(outputs[self.scores].reshape(count, -1))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _rows(self, array: Array, is_prediction: bool) -> list[list[Any]]:
        """Return an output as lists. If the model has labels, they replace the class numbers of a
        prediction."""
        rows: list[list[Any]] = array.tolist()
        if array.dtype.kind == "O":
            return [[value.decode() for value in row] for row in rows]
        if not is_prediction or not self.labels or array.dtype.kind not in "iub":
            return rows
        numbers = self.options["classes"] or range(len(self.labels))
        names = dict(zip(numbers, self.labels, strict=False))
        return [[names[value] for value in row] for row in rows]

    def _by_class(self, array: Array) -> list[dict[str, float]]:
        """Return {class: probability} for each row. Without labels, a class is named by its number,
        or by False or True if the prediction is a boolean."""
        count = array.shape[1]
        if self.labels:
            names = self.labels
        elif self.predicts_booleans and count == len(BOOLEANS):
            names = BOOLEANS
        else:
            numbers = self.options["classes"] or range(count)
            names = [str(int(number)) if number % 1 == 0 else str(number) for number in numbers]
        return [dict(zip(names, row, strict=True)) for row in array.tolist()]


def _width(spec: TensorSpec, named: int) -> int:
    """Return the number of columns of an input, or `named` if its shape does not determine it.
    Raise InvalidRequest if `named` is then 0, or if the input is not a column or a matrix."""
    columns = math.prod(spec.shape)
    is_unknown = columns < 1 and not named
    if len(spec.shape) > 1 or spec.datatype not in DTYPES or is_unknown:
        raise InvalidRequest(
            f"input '{spec.name}' {spec.datatype} {list(spec.shape)} is not a column or "
            "matrix of columns: besides the batch it must have one dimension, of a fixed "
            "size, or the columns' names must be in columns.txt"
        )
    return columns if columns > 0 else named


def _listed(names: Sequence[str]) -> str:
    """Return the names in quotes, shortened to 100 characters each. Only count those after the
    first LISTED."""
    listed = ", ".join(f"'{name[:100]}'" for name in names[:LISTED])
    more = len(names) - LISTED
    return f"{listed} and {more} more" if more > 0 else listed
