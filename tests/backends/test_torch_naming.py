"""The rules by which config.pbtxt's tensors are a TorchScript module's, and its parameters."""

import pytest

from backends.pytorch.naming import check, input_names, input_places, output_places
from backends.pytorch.torch_settings import TorchSettings

pytestmark = pytest.mark.full


def entry(name: str, datatype: str = "FP32", *dims: int) -> dict[str, object]:
    return {"name": name, "data_type": f"TYPE_{datatype}", "dims": list(dims)}


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["y", "x"], [1, 0]),
        (["INPUT__1", "INPUT__0"], [1, 0]),
        (["a", "b"], [0, 1]),
        (["a__x", "b__0"], [0, 1]),  # not an index: the order decides
        (["x", "INPUT__1"], [0, 1]),
    ],
)
def test_inputs_are_named_as_arguments_or_by_index_or_come_in_order(names: list[str], places: list[int]) -> None:
    assert input_places(names, ["x", "y"]) == dict(zip(names, places, strict=True))


@pytest.mark.parametrize("names", [["x"], ["x", "y", "z"], ["INPUT__0", "INPUT__2"], ["INPUT__1", "OTHER__1"]])
def test_inputs_that_are_not_all_arguments_are_refused_with_both_lists(names: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"{', '.join(names)},.* x, y"):
        input_places(names, ["x", "y"])


def test_outputs_go_by_index_or_in_order() -> None:
    assert output_places(["OUTPUT__1", "OUTPUT__0"]) == {"OUTPUT__1": 1, "OUTPUT__0": 0}
    assert output_places(["logits", "OUTPUT__0"]) == {"logits": 0, "OUTPUT__0": 1}


def test_the_control_tensors_of_a_sequence_are_inputs() -> None:
    controls = {"control_input": [{"name": "START__1"}]}
    assert input_names({"input": [entry("INPUT__0")], "sequence_batching": controls}) == ["INPUT__0", "START__1"]


@pytest.mark.parametrize(("datatype", "dims", "most"), [("UINT32", [], 0), ("STRING", [1], 8)])
def test_tensors_that_pytorch_does_not_have_are_refused(datatype: str, dims: list[int], most: int) -> None:
    config = {"input": [entry("INPUT__0", datatype, *dims)], "output": [entry("OUTPUT__0")], "max_batch_size": most}
    with pytest.raises(ValueError, match="'INPUT__0'"):
        check(config)


def settings(**given: str) -> TorchSettings:
    return TorchSettings.from_config({"parameters": {name: {"string_value": text} for name, text in given.items()}})


def test_the_defaults_are_those_of_nvidias_backend() -> None:
    found = settings()
    assert (found.inference_mode, found.optimized_execution, found.cudnn) == (True, True, True)
    assert (found.weight_sharing, found.cache_cleaning, found.switches) == (False, False, ())


@pytest.mark.parametrize(
    "name", ["INFERENCE_MODE", "DISABLE_OPTIMIZED_EXECUTION", "ENABLE_JIT_EXECUTOR", "INTRA_OP_THREAD_COUNT"]
)
def test_a_wrong_parameter_is_named_with_its_value(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*'maybe'"):
        settings(**{name: "maybe"})
