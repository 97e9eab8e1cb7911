"""Converts tree models of scikit-learn, XGBoost and LightGBM to ONNX, node by node. The sums of
their trees equal the library's exactly.

Thresholds are often values that occur in the data, so the last bit of a cell can decide which
branch is taken. scikit-learn's trees and XGBoost round cells to FP32 before they compare;
HistGradientBoosting and LightGBM do not. Thresholds are stored in FP64 here, which represents those
of all four exactly.

The order in which trees are added up matters too, because rounding can decide between two classes
with almost equal sums. ONNX Runtime adds up trees in an order of its own, and returns FP32.
Therefore the ensemble in the graph returns only the number of the leaf that each tree reached,
which FP32 holds exactly, and CumSum adds the values of the leaves from the first tree to the last,
as the libraries do.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from build_engines.errors import BuildError
from build_engines.onnx_writer import ML, Graph

Array = NDArray[Any]
Outputs = dict[str, str]  # output's name -> its tensor
# the outputs' names, which are skl2onnx's; a regressor returns the variable
LABEL, PROBABILITIES, VARIABLE = "label", "probabilities", "variable"
MOST_LEAVES = 1 << 24  # FP32 holds all whole numbers up to this
ZERO = float(np.float32(1e-35))  # LightGBM's kZeroThreshold: absolute values up to it count as 0
INFINITE = 1e300  # in LightGBM's dump, a threshold is infinite if its absolute value reaches this
LEAF = -1
LESS, LESS_OR_EQUAL = "BRANCH_LT", "BRANCH_LEQ"


@dataclass(frozen=True)
class Tree:
    """The nodes of one tree. `left` is LEAF for a leaf. `values` [nodes, n] are meaningful only for
    leaves. A missing cell goes left if `missing_left`."""

    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array
    values: Array

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]], values: Any) -> "Tree":
        """Return a tree, given one row for each node: feature, threshold, left, right,
        missing_left."""
        columns = zip(*rows, strict=True)
        feature, threshold, left, right, missing_left = map(np.array, columns)
        return cls(feature, threshold, left, right, missing_left, np.asarray(values))

    @classmethod
    def leaf(cls, values: Any) -> "Tree":
        """Return a tree that consists of one leaf with these values."""
        return cls.of([[0, 0, LEAF, LEAF, 0]], np.atleast_2d(values))


@dataclass(frozen=True)
class Trees:
    """The trees of an ensemble, in the order in which they are added up. If `sums` is 0, a leaf has
    a value for each sum. Otherwise it has only one, and tree number i adds it to sum i % `sums`."""

    trees: Sequence[Tree]
    sums: int = 0
    mode: str = LESS_OR_EQUAL
    in_fp32: bool = False  # cells are rounded to FP32 before they are compared
    missing: float = np.nan  # the number that means a missing cell
    zero_values: Array | None = None  # for each column, what replaces a number that counts as 0
    # each column's highest category; inf: unknown; NaN: the column has numbers, not categories
    highest_category: Array | None = None

    @classmethod
    def boosted(cls, base_scores: Array, trees: Sequence[Tree], **fields: Any) -> "Trees":
        """Return an ensemble with n sums, each of which begins with its value in `base_scores` [n].
        For this, n trees that consist of one leaf are put before `trees`. Tree number i adds to sum
        i % n. `fields` are the other fields of Trees."""
        return cls([*map(Tree.leaf, base_scores), *trees], len(base_scores), **fields)

    @property
    def values_per_row(self) -> int:
        """Return how many values are added up for each row."""
        return len(self.trees) * self.trees[0].values.shape[1]

    def thresholds(self) -> dict[int, Array]:
        """Return the thresholds of each column that the trees read."""
        is_split = self.joined("left") != LEAF
        features = self.joined("feature")[is_split]
        values = self.joined("threshold")[is_split]
        columns = np.unique(features).tolist()
        return {column: np.unique(values[features == column]) for column in columns}

    def joined(self, name: str) -> Array:
        """Return the field `name` of the nodes of all trees, one tree after the other."""
        return np.concatenate([getattr(tree, name) for tree in self.trees])


def add_up(graph: Graph, cells: str, ensemble: Trees) -> str:
    """Add the nodes that find the leaf of each tree for each row of the FP64 matrix `cells`, and
    add up the values of these leaves. Return the sums [rows, n]."""
    compared = _as_compared(graph, cells, ensemble)
    leaves = graph.cast(_leaves(graph, compared, ensemble), TensorProto.INT64)
    values = ensemble.joined("values")[ensemble.joined("left") == LEAF]
    addends = len(ensemble.trees)  # for each sum
    if ensemble.sums:
        addends //= ensemble.sums
        leaves = graph.add("Reshape", leaves, [0, addends, ensemble.sums])
        values = values[:, 0]
    parts = graph.add("Gather", values, leaves)  # [rows, addends, n]
    if addends == 1:
        return graph.add("Squeeze", parts, [1])
    totals = graph.add("CumSum", parts, 1)
    return graph.add("Gather", totals, addends - 1, axis=1)


def _as_compared(graph: Graph, cells: str, ensemble: Trees) -> str:
    """Return the cells as the library compares them with thresholds: rounded to FP32, with NaN for
    missing cells, zeros replaced and categories as integers, each only if `ensemble` says so."""
    if ensemble.in_fp32:
        rounded = graph.cast(cells, TensorProto.FLOAT)
        cells = graph.cast(rounded, TensorProto.DOUBLE)
    if not np.isnan(ensemble.missing):  # only XGBoost has such a number, and rounds it to FP32
        is_missing = graph.add("Equal", cells, float(np.float32(ensemble.missing)))
        cells = graph.add("Where", is_missing, np.nan, cells)
    if ensemble.zero_values is not None:
        sizes = graph.add("Abs", cells)
        is_zero = graph.add("LessOrEqual", sizes, ZERO)
        cells = graph.add("Where", is_zero, ensemble.zero_values, cells)
    if ensemble.highest_category is not None:
        is_category = ~np.isnan(ensemble.highest_category)
        if is_category.any():
            cells = graph.add("Where", is_category, _without_fractions(graph, cells), cells)
    return cells


def _without_fractions(graph: Graph, cells: str) -> str:
    """Return the cells rounded towards 0."""
    sizes = graph.add("Floor", graph.add("Abs", cells))
    return graph.add("Mul", graph.add("Sign", cells), sizes)


def _leaves(graph: Graph, cells: str, ensemble: Trees) -> str:
    """Return the number of the leaf that each tree reaches for each row, [rows, trees]. The leaves
    of all trees are numbered consecutively. Raise BuildError if there are too many."""
    counts = [len(tree.left) for tree in ensemble.trees]
    tree_ids = np.repeat(np.arange(len(counts)), counts)
    node_ids = np.concatenate([np.arange(count) for count in counts])
    is_leaf = ensemble.joined("left") == LEAF
    leaves = int(is_leaf.sum())
    if leaves >= MOST_LEAVES:
        raise BuildError(
            f"its trees have {leaves} leaves, and at most {MOST_LEAVES - 1} are built: limit their "
            "depth (max_depth, max_leaf_nodes)"
        )
    return graph.add(
        "TreeEnsembleRegressor",
        cells,
        domain=ML,
        n_targets=len(counts),
        nodes_treeids=tree_ids,
        nodes_nodeids=node_ids,
        nodes_featureids=np.where(is_leaf, 0, ensemble.joined("feature")),
        nodes_modes=np.where(is_leaf, "LEAF", ensemble.mode).tolist(),
        nodes_values_as_tensor=_doubles(np.where(is_leaf, 0.0, ensemble.joined("threshold"))),
        nodes_truenodeids=np.where(is_leaf, 0, ensemble.joined("left")),
        nodes_falsenodeids=np.where(is_leaf, 0, ensemble.joined("right")),
        nodes_missing_value_tracks_true=np.where(is_leaf, 0, ensemble.joined("missing_left") != 0),
        target_treeids=tree_ids[is_leaf],
        target_nodeids=node_ids[is_leaf],
        target_ids=tree_ids[is_leaf],
        target_weights_as_tensor=_doubles(np.arange(leaves)),
    )


def _doubles(values: Array) -> Any:
    return helper.make_tensor(
        "values", TensorProto.DOUBLE, values.shape, values.astype(np.float64).tobytes(), raw=True
    )


@dataclass(frozen=True)
class Kind:
    """Converts one kind of model: `read` returns the model's trees, and `answer` turns the sums
    [rows, n] into the results of predict and predict_proba."""

    read: Callable[[Any], Trees]
    answer: Callable[[Graph, Any, str], Outputs]


def kind_of(model: Any) -> str:
    """Return the key of a trained model in KINDS, or "" if it is not a tree model that this module
    converts."""
    own_class = type(model)
    library = own_class.__module__.partition(".")[0]
    names = {base.__name__ for base in own_class.__mro__}
    names.add(f"{library}.{own_class.__name__}")
    return next((name for name in KINDS if name in names), "")


def read_trees(model: Any) -> Trees:
    """Return the trees of a model that is in KINDS. Raise BuildError if they cannot be
    converted."""
    return KINDS[kind_of(model)].read(model)


def write_trees(graph: Graph, model: Any, trees: Trees, cells: str) -> Outputs:
    """Add the nodes that compute the model's predictions for the matrix `cells` from its `trees`.
    Return its outputs, with the prediction first. Raise BuildError if the model cannot be
    converted."""
    return KINDS[kind_of(model)].answer(graph, model, add_up(graph, cells, trees))


# --- scikit-learn


def _tree(model: Any, scale: float = 1.0) -> Tree:
    """Return the tree of a scikit-learn estimator, with its leaf values multiplied by `scale`."""
    tree = model.tree_
    # [nodes, outputs, classes]; a classifier has one output, and a regressor has one class
    values = tree.value[:, 0] if hasattr(model, "classes_") else tree.value[:, :, 0]
    return Tree(
        tree.feature,
        tree.threshold,
        tree.children_left,
        tree.children_right,
        tree.missing_go_to_left,
        scale * values,
    )


def _one_tree(model: Any) -> Trees:
    return Trees([_tree(model)], in_fp32=True)


def _forest(model: Any) -> Trees:
    return Trees([_tree(each) for each in model.estimators_], in_fp32=True)


def _boosted(model: Any) -> Trees:
    """Return the trees of a GradientBoosting model. Their sums begin with the prediction of `init`,
    which is the same for all rows. Raise BuildError if the user set `init` to an estimator."""
    if model.init is not None and model.init != "zero":
        raise BuildError(
            f"its init is a {type(model.init).__name__}, which is not converted: train it without "
            "init"
        )
    row = np.zeros((1, model.n_features_in_), np.float32)
    trees = [_tree(each, model.learning_rate) for each in model.estimators_.ravel()]
    return Trees.boosted(model._raw_predict_init(row)[0], trees, in_fp32=True)


def _histogram(model: Any) -> Trees:
    trees = [_tree_of_predictor(each) for each in chain.from_iterable(model._predictors)]
    bins = model._bin_mapper
    highest = np.full(len(bins.is_categorical_), np.nan)
    for column in np.flatnonzero(bins.is_categorical_):
        # the thresholds of a categorical column are its categories
        highest[column] = max(bins.bin_thresholds_[column])
    return Trees.boosted(np.ravel(model._baseline_prediction), trees, highest_category=highest)


def _tree_of_predictor(predictor: Any) -> Tree:
    """Return one tree of a HistGradientBoosting model. A bitset has the categories that a node
    sends to the left."""
    nodes = predictor.nodes
    is_leaf = nodes["is_leaf"] != 0
    tree = Tree(
        nodes["feature_idx"],
        nodes["num_threshold"],
        np.where(is_leaf, LEAF, nodes["left"].astype(np.int64)),
        nodes["right"].astype(np.int64),
        nodes["missing_go_to_left"],
        nodes["value"][:, None],
    )
    bits = np.unpackbits(predictor.raw_left_cat_bitsets.view(np.uint8), axis=1, bitorder="little")
    has_set = (nodes["is_categorical"] != 0) & ~is_leaf
    sets: dict[int, Array] = {}
    for node in np.flatnonzero(has_set).tolist():
        bitset = bits[nodes["bitset_idx"][node]]
        sets[node] = np.flatnonzero(bitset)
    return _with_sets(tree, sets)


def _with_sets(tree: Tree, sets: Mapping[int, Array]) -> Tree:
    """Return the tree, with each node in `sets` replaced by a chain of comparisons. Such a node
    sends the integers in its set to the left, a missing cell to the side that `missing_left` says,
    and all other numbers to the right.

    The first comparison of the chain is true only for a missing cell. Each of the others tests
    whether a number is below the next border between integers in the set and integers outside it.
    """
    if not sets:
        return tree
    columns = (tree.feature, tree.threshold, tree.left, tree.right, tree.missing_left)
    rows: list[Any] = list(zip(*columns, strict=True))
    for node, numbers in sets.items():
        feature, _, left, right, missing_left = rows[node]
        is_in_set = np.isin(np.arange(-1, max(numbers, default=0) + 2), numbers)
        # index i of `is_in_set` is the integer i - 1, so the border behind it is i - 0.5
        borders = np.flatnonzero(np.diff(is_in_set)) - 0.5
        missing = left if missing_left else right
        following = len(rows) if len(borders) else right
        rows[node] = [feature, -np.inf, missing, following, 1]
        for position, border in enumerate(borders):
            # integers below the first border are outside the set, those below the second in it, …
            below = left if position % 2 else right
            is_last = position == len(borders) - 1
            above = right if is_last else len(rows) + 1
            rows.append([feature, border, below, above, 0])
    count, width = tree.values.shape
    added = np.zeros((len(rows) - count, width))
    return Tree.of(rows, np.concatenate([tree.values, added]))


def _averaged(graph: Graph, model: Any, sums: str) -> Outputs:
    """Turn the sums into means over the trees. A classifier predicts the first class with the
    highest mean."""
    count = len(getattr(model, "estimators_", [model]))
    means = graph.add("Div", sums, float(count))
    if hasattr(model, "classes_"):
        return _with_likeliest_class(graph, model, means)
    return {VARIABLE: means}


def _linked(graph: Graph, model: Any, sums: str) -> Outputs:
    """Turn the sums into predictions, according to the loss of a boosted model of scikit-learn."""
    link = type(model._loss.link).__name__
    if not hasattr(model, "classes_"):
        return {VARIABLE: graph.add("Exp", sums) if link == "LogLink" else sums}
    if link == "MultinomialLogit":
        index = graph.add("ArgMax", sums, axis=1, keepdims=0)
        return _with_class(graph, model, index, graph.add("Softmax", sums, axis=1))
    # for a sum of 0, HistGradientBoosting predicts the first class, and GradientBoosting the second
    comparison = "Greater" if hasattr(model, "_predictors") else "GreaterOrEqual"
    is_second = graph.add(comparison, sums, 0.0)
    logits = sums
    if link == "HalfLogitLink":  # the sums are halves of logits
        logits = graph.add("Mul", sums, 2.0)
    probabilities = _of_both_classes(graph, graph.add("Sigmoid", logits), 1.0)
    return _with_class(graph, model, _class_index(graph, is_second), probabilities)


def _of_both_classes(graph: Graph, second: str, one: Any) -> str:
    """Return the probabilities of both classes, given those of the `second` class. `one` is the
    number 1 in their datatype."""
    first = graph.add("Sub", one, second)
    return graph.add("Concat", first, second, axis=1)


def _class_index(graph: Graph, is_second: str) -> str:
    """Return the index of each row's class, 0 or 1 [rows]. `is_second` [rows, 1] is true for the
    second class."""
    return graph.cast(graph.add("Squeeze", is_second, [1]), TensorProto.INT64)


def _with_likeliest_class(graph: Graph, model: Any, probabilities: str) -> Outputs:
    """Return, for each row, the class with the highest probability, and the probabilities."""
    index = graph.add("ArgMax", probabilities, axis=1, keepdims=0)
    return _with_class(graph, model, index, probabilities)


def _with_class(graph: Graph, model: Any, index: str, probabilities: str) -> Outputs:
    """Return the class [rows] at each index, and the probabilities of all classes. A Booster has no
    `classes_`, so the index is the class."""
    classes = getattr(model, "classes_", None)
    if classes is None:
        return {LABEL: index, PROBABILITIES: probabilities}
    values = np.asarray(classes)
    if values.dtype.kind in "OSU":
        values = values.astype(str).astype(object)
    elif values.dtype.kind in "iu":
        values = values.astype(np.int64)
    return {LABEL: graph.add("Gather", values, index), PROBABILITIES: probabilities}


def booster_of(model: Any) -> Any:
    """Return the Booster inside a model of XGBoost or LightGBM. Return any other model as it is."""
    if hasattr(model, "get_booster"):
        return model.get_booster()
    return getattr(model, "booster_", model)


def objective_of(model: Any) -> str:
    """Return the objective of a model of XGBoost or LightGBM, as the library names it. LightGBM
    appends options, as in "binary sigmoid:1". If LightGBM names none, return "custom"."""
    booster = booster_of(model)
    if hasattr(booster, "save_config"):
        return str(json.loads(booster.save_config())["learner"]["objective"]["name"])
    return str(booster.dump_model(num_iteration=1).get("objective", "custom"))


def _returns_classes(model: Any, is_binary: bool) -> bool:
    """Return whether the outputs of a model of XGBoost or LightGBM include classes. Those of a
    classifier do. Those of a Booster do if its objective `is_binary`."""
    is_booster = booster_of(model) is model
    return hasattr(model, "classes_") or (is_booster and is_binary)


# --- XGBoost


def best_trees(booster: Any) -> Any:
    """Return XGBoost's Booster up to its best round, or the whole Booster if training did not stop
    early."""
    best = booster.attr("best_iteration")
    return booster[: int(best) + 1] if best else booster


def _xgboost(model: Any) -> Trees:
    """Return the trees. Raise BuildError if the model has options that are not converted."""
    booster = booster_of(model)
    document = json.loads(booster.save_raw("json"))
    gradient_booster = document["learner"]["gradient_booster"]
    if gradient_booster["name"] != "gbtree":
        raise BuildError(
            f"its booster is {gradient_booster['name']}, and only XGBoost's gbtree is converted: "
            "train it with booster='gbtree'"
        )
    forest = gradient_booster["model"]
    trees = [_tree_of_json(tree) for tree in forest["trees"]]
    # set all leaves in the document to 0, for _base_scores
    for tree, in_document in zip(trees, forest["trees"], strict=True):
        thresholds = np.where(tree.left == LEAF, 0, tree.threshold)
        in_document["split_conditions"] = thresholds.tolist()
    base_scores = _base_scores(document, booster.num_features())
    # tree_info has the sum to which each tree adds
    by_sum = np.argsort(forest["tree_info"], kind="stable").reshape(len(base_scores), -1)
    order = by_sum.T.ravel()  # the first tree of each sum, then the second of each …
    missing = getattr(model, "missing", None)
    return Trees.boosted(
        base_scores,
        [trees[index] for index in order],
        mode=LESS,
        in_fp32=True,
        missing=np.nan if missing is None else missing,
    )


def _base_scores(document: Mapping[str, Any], features: int) -> Array:
    """Return the base scores of the XGBoost model in the JSON `document`, all of whose leaves are
    0. They are computed by a prediction, because their meaning in the JSON depends on the version
    of XGBoost that wrote it."""
    import xgboost

    empty = xgboost.Booster()
    empty.load_model(bytearray(json.dumps(document).encode()))
    empty.feature_names = empty.feature_types = None
    blank = xgboost.DMatrix(np.zeros((1, features)))
    return np.ravel(empty.predict(blank, output_margin=True))


def _tree_of_json(tree: Mapping[str, Any]) -> Tree:
    """Read a tree from XGBoost's JSON. Raise BuildError if the tree has categorical columns, or
    leaves with several values."""
    if any(tree["split_type"]):
        raise BuildError(
            "it has categorical columns, which are not converted: train it on codes or on columns "
            "of scikit-learn's OneHotEncoder, in a pipeline"
        )
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise BuildError("multi_strategy='multi_output_tree': train 'one_output_per_tree'")
    values = np.array(tree["split_conditions"], np.float32)  # thresholds, and values of leaves
    return Tree(
        np.array(tree["split_indices"]),
        values,
        np.array(tree["left_children"]),
        np.array(tree["right_children"]),
        np.array(tree["default_left"]),
        values[:, None],
    )


# Objectives, or their beginnings. For those in the first group, the prediction is the sum itself.
# For those in the second, it is e to the power of the sum.
XGBOOST_IDENTITY = (
    "rank:",
    "reg:squared",
    "reg:absolute",
    "reg:pseudohuber",
    "reg:quantile",
    "binary:logitraw",
)
XGBOOST_EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:")


def _xgboost_answer(graph: Graph, model: Any, sums: str) -> Outputs:
    """Turn the sums into predictions, according to the objective, in FP32 as XGBoost does."""
    objective = objective_of(model)
    if objective.startswith("multi:"):
        probabilities = _softmax(graph, sums)
        # Like XGBoost, use the sums only for multi:softmax. The class can differ, because rounding
        # can make the probabilities of different sums equal.
        decisive = sums if objective == "multi:softmax" else probabilities
        index = graph.add("ArgMax", decisive, axis=1, keepdims=0)
        return _with_class(graph, model, index, probabilities)
    values = _transformed(graph, objective, sums)
    if not _returns_classes(model, objective == "binary:logistic"):
        return {VARIABLE: values}
    is_second = graph.add("Greater", values, np.float32(0.5))
    probabilities = _of_both_classes(graph, values, np.float32(1))
    return _with_class(graph, model, _class_index(graph, is_second), probabilities)


def _transformed(graph: Graph, objective: str, sums: str) -> str:
    """Return what XGBoost's objective makes of the sums. Raise BuildError if the objective is not
    converted."""
    if objective in ("binary:logistic", "reg:logistic"):
        one = np.float32(1)
        power = _exp(graph, graph.add("Neg", sums))
        return graph.add("Div", one, graph.add("Add", one, power))
    if objective == "binary:hinge":
        return graph.cast(graph.add("Greater", sums, np.float32(0)), TensorProto.FLOAT)
    if objective.startswith(XGBOOST_EXPONENTIAL):
        return _exp(graph, sums)
    if objective.startswith(XGBOOST_IDENTITY):
        return sums
    raise BuildError(f"XGBoost's objective {objective} is not converted")


def _exp(graph: Graph, values: str) -> str:
    """Return e to the power of FP32 values, computed in FP64 and then rounded to FP32. The results
    almost always equal those of C's expf."""
    power = graph.add("Exp", graph.cast(values, TensorProto.DOUBLE))
    return graph.cast(power, TensorProto.FLOAT)


def _softmax(graph: Graph, sums: str) -> str:
    """Return the softmax of FP32 sums. Like XGBoost, add up the powers in FP64."""
    greatest = graph.add("ReduceMax", sums, axes=[1])
    powers = _exp(graph, graph.add("Sub", sums, greatest))
    doubles = graph.cast(powers, TensorProto.DOUBLE)
    total = graph.add("ReduceSum", doubles, [1])
    return graph.add("Div", powers, graph.cast(total, TensorProto.FLOAT))


# --- LightGBM


def _lightgbm(model: Any) -> Trees:
    """Return the trees. Raise BuildError if the model has options that are not converted."""
    booster = booster_of(model)
    document = booster.dump_model()
    if document["pandas_categorical"]:
        raise BuildError(
            "it has categorical columns of pandas, which are not converted: train it on codes or "
            "on columns of scikit-learn's OneHotEncoder, in a pipeline"
        )
    if "is_linear=1" in booster.model_to_string():
        raise BuildError("its trees are linear: train it without linear_tree")
    # scikit-learn's interface stores pred_early_stop; a Booster's predict takes it as an argument
    options = model.get_params() if hasattr(model, "get_params") else {}
    if options.get("pred_early_stop"):
        raise BuildError(
            "pred_early_stop leaves out trees of some rows, and all trees are built: "
            "model.set_params(pred_early_stop=False), and save it again"
        )
    missing_types: dict[int, set[str]] = {}
    highest = np.full(booster.num_feature(), np.nan)
    trees = [
        _tree_of_dump(dumped["tree_structure"], missing_types, highest)
        for dumped in document["tree_info"]
    ]
    zero_values = np.zeros(len(highest))
    for feature, kinds in sorted(missing_types.items()):
        if len(kinds) > 1:
            raise BuildError(f"its trees take missing cells of column {feature} in several ways")
        if kinds == {"Zero"}:  # 0 means a missing cell
            zero_values[feature] = np.nan
    base_scores = np.zeros(int(document["num_tree_per_iteration"]))
    return Trees.boosted(base_scores, trees, zero_values=zero_values, highest_category=highest)


def _tree_of_dump(
    root: Mapping[str, Any], missing_types: dict[int, set[str]], highest: Array
) -> Tree:
    """Read a tree from the output of LightGBM's dump_model(). Record in `missing_types` how each
    column with numbers treats missing cells, and set `highest` to inf for categorical columns."""
    rows: list[list[Any]] = []
    values: list[list[float]] = []
    sets: dict[int, Array] = {}
    # nodes to read, each with the number of its parent's row (LEAF: no parent), and the index in
    # this row at which the number of the node's own row belongs
    pending: list[tuple[Mapping[str, Any], int, int]] = [(root, LEAF, 0)]
    while pending:
        node, parent, side = pending.pop()
        own = len(rows)
        if parent != LEAF:
            rows[parent][side] = own
        values.append([node.get("leaf_value", 0.0)])
        if "split_feature" not in node:
            rows.append([0, 0.0, LEAF, LEAF, 0])
            continue
        feature = node["split_feature"]
        threshold = node["threshold"]
        # 2 and 3 are the indices of left and right in a row
        pending.append((node["left_child"], own, 2))
        pending.append((node["right_child"], own, 3))
        if node["decision_type"] == "==":
            highest[feature] = np.inf
            numbers = threshold.split("||")
            sets[own] = np.array(numbers, int)
            rows.append([feature, 0.0, 0, 0, 0])
            continue
        missing_type = node["missing_type"]
        missing_types.setdefault(feature, set()).add(missing_type)
        if abs(threshold) >= INFINITE:
            threshold = np.copysign(np.inf, threshold)
        # a column that had no missing cells in training treats a missing cell as 0
        goes_left = threshold >= 0 if missing_type == "None" else node["default_left"]
        rows.append([feature, threshold, 0, 0, int(goes_left)])
    return _with_sets(Tree.of(rows, values), sets)


LIGHTGBM_IDENTITY = (  # objectives whose prediction is the sum itself
    "regression",
    "regression_l1",
    "huber",
    "fair",
    "quantile",
    "mape",
    "lambdarank",
    "rank_xendcg",
)


def _lightgbm_answer(graph: Graph, model: Any, sums: str) -> Outputs:
    """Turn the sums into predictions, according to the objective and its options, in FP64."""
    booster = booster_of(model)
    document = booster.dump_model(num_iteration=1)
    objective, *options = objective_of(model).split(" ")
    numbers = dict(option.split(":") for option in options if ":" in option)
    if document["average_output"]:
        iterations = booster.num_trees() // document["num_tree_per_iteration"]
        sums = graph.add("Div", sums, float(iterations))
    scaled = graph.add("Mul", sums, float(numbers.get("sigmoid", 1)))
    if objective == "multiclass":
        return _with_likeliest_class(graph, model, graph.add("Softmax", sums, axis=1))
    if objective == "multiclassova":
        return _with_likeliest_class(graph, model, graph.add("Sigmoid", scaled))
    if objective in ("binary", "cross_entropy"):
        second = graph.add("Sigmoid", scaled)
        if not _returns_classes(model, objective == "binary"):
            return {VARIABLE: second}
        return _with_likeliest_class(graph, model, _of_both_classes(graph, second, 1.0))
    if objective in ("poisson", "gamma", "tweedie"):
        return {VARIABLE: graph.add("Exp", sums)}
    if objective in LIGHTGBM_IDENTITY and "sqrt" in options:  # it learned the roots of the targets
        return {VARIABLE: graph.add("Mul", sums, graph.add("Abs", sums))}
    if objective in LIGHTGBM_IDENTITY:
        return {VARIABLE: sums}
    raise BuildError(f"LightGBM's objective {objective} is not converted")


# Keyed by the name of the model's class, or of one of its base classes. Two libraries have a class
# Booster, so its key begins with the library.
KINDS = {
    "BaseDecisionTree": Kind(_one_tree, _averaged),
    "ForestClassifier": Kind(_forest, _averaged),
    "ForestRegressor": Kind(_forest, _averaged),
    "BaseGradientBoosting": Kind(_boosted, _linked),
    "BaseHistGradientBoosting": Kind(_histogram, _linked),
    "XGBModel": Kind(_xgboost, _xgboost_answer),
    "xgboost.Booster": Kind(_xgboost, _xgboost_answer),
    "LGBMModel": Kind(_lightgbm, _lightgbm_answer),
    "lightgbm.Booster": Kind(_lightgbm, _lightgbm_answer),
}
