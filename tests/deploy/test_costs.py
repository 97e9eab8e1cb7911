"""The cost page is the computation, and the computation is right."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.costs import PRICES, Instance, Model, Prices, page
from deploy.errors import DeployError
from tests.deploy.conftest import Aws
from tests.support.harness import ROOT


def test_the_page_in_docs_is_the_computed_one(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("costs") == 0
    assert (ROOT / "docs/costs.md").read_text() == capsys.readouterr().out == page(Prices.read(PRICES))


def test_it_says_that_prices_are_examples_and_where_aws_lists_them() -> None:
    for path in ("docs/costs.md", "deploy/prices.toml"):
        text = (ROOT / path).read_text()
        assert "prices are examples" in text
        assert "https://aws.amazon.com/sagemaker/ai/pricing/" in text


def prices(load: float) -> tuple[Prices, Instance]:
    models = (Model("a", 1.0, 0.1), Model("b", 2.0, 0.1), Model("c", 3.0, 0.1))  # 0.1, 0.2 and 0.3 cores
    instance = Instance("ml.x", 0.5, 1.0, 2)
    return Prices("USD", 100.0, 0.5, (load,), models, (instance,)), instance


@pytest.mark.parametrize(
    ("load", "one", "three"),
    [(1, 2, [2, 2, 2]), (2, 3, [2, 2, 2]), (10, 12, [2, 4, 6]), (0, 2, [2, 2, 2])],  # by hand: 0.6 cores / 0.5
)
def test_instances_follow_the_load_and_never_fall_below_the_minimum(load: float, one: int, three: list[int]) -> None:
    table, instance = prices(load)
    assert table.needed(instance, table.models, load) == one
    assert [table.needed(instance, (model,), load) for model in table.models] == three


def test_the_page_has_the_costs_of_both_ways_and_what_is_saved() -> None:
    table, _ = prices(1)
    assert "| 1 | 2 | 100 | 2 + 2 + 2 | 300 | 67% |" in page(table)  # 2 · 0.5 · 100 and 6 · 0.5 · 100


def test_a_million_costs_what_the_benchmark_measured_at_the_price_of_the_instance(tmp_path: Path) -> None:
    table, instance = prices(1)
    table = replace(table, instances=(replace(instance, processor="amd-avx2"),))
    assert "ml.x: `benchmarks/results/amd-avx2.md` is not there yet." in page(table, tmp_path)
    samples = {"resnet50-8": {"ours": [{"cpu_ms": 90.0}, {"cpu_ms": 30.0}, {"cpu_ms": 36.0}]}}
    (tmp_path / "amd-avx2").mkdir()
    (tmp_path / "amd-avx2/results.json").write_text(json.dumps({"results": {"samples": samples}}))
    found = page(table, tmp_path)  # by hand: 36,000 core-seconds / (1 core · 50 %) / 3,600 s · 0.50
    assert "| JPEGs of 768×576 by ResNet-50 | 0.0360 | 10.00 |" in found
    assert "1,000,000 × 0.0360 core-seconds / (1 cores × 50%) / 3,600 s × 0.5 USD = 10.00 USD" in found


def test_results_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    table, instance = prices(1)
    (tmp_path / "arm64").mkdir()
    (tmp_path / "arm64/results.json").write_text("{}")
    with pytest.raises(DeployError, match="has no results of the benchmark"):
        page(replace(table, instances=(replace(instance, processor="arm64"),)), tmp_path)


def test_one_endpoint_never_needs_more_instances_than_three() -> None:
    table = Prices.read(PRICES)
    for instance in table.instances:
        for load in [*table.loads, *(math.e**power for power in range(-4, 8))]:
            apart = sum(table.needed(instance, (model,), load) for model in table.models)
            assert table.needed(instance, table.models, load) <= apart


def test_ones_own_table_is_taken(aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(PRICES.read_text().replace("USD", "EUR"))
    assert aws.deploy("costs", "--prices", str(own)) == 0
    out = capsys.readouterr().out
    assert "EUR a month" in out
    assert "USD" not in out


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("currency = ", "Invalid value"), ("currency = 'USD'", "'models'"), ("models = []\ninstances = []", "'loads'")],
)
def test_a_table_that_cannot_be_read_is_an_error(
    aws: Aws, tmp_path: Path, text: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    assert aws.deploy("costs", "--prices", str(own)) == 1
    assert f"{own} is not a price table: " in (err := capsys.readouterr().err)
    assert wrong in err
    assert aws.deploy("costs", "--prices", str(tmp_path / "none.toml")) == 1
    assert "cannot be read: No such file or directory" in capsys.readouterr().err
