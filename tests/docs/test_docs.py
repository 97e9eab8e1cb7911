"""The README is true: its settings, errors and routes are complete, and what it says to run does what it shows."""

import os
import re
import subprocess
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise

import pytest

from predictor import create_app
from serving import errors
from serving.errors import ServingError
from serving.settings.table import TABLE, Settings, markdown
from tests.support.harness import PATIENCE, ROOT
from tests.support.readme import (
    BLOCKS,
    EXECUTED_BY,
    NEEDS,
    README,
    SHELL,
    Block,
    Reader,
    commands,
    compare,
    fresh_checkout,
    read_blocks,
)

TO_FOLLOW = [block for block in SHELL if not block.marker]


def leaves(kind: type[ServingError]) -> list[type[ServingError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


def test_the_page_of_settings_is_the_one_that_the_code_prints() -> None:
    assert (ROOT / "docs/settings.md").read_text() == markdown()


def test_the_readme_has_ten_settings_with_their_defaults() -> None:
    shown = README.split("<!-- settings -->\n")[1].split("<!-- end of settings -->")[0]
    found = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", shown, re.MULTILINE))
    rows = {variable: row for row in TABLE for variable in row.variables}
    assert len(found) == 10
    for variable, default in found.items():
        assert default.strip("`") == (rows[variable].format(rows[variable].default) or "none")


@pytest.mark.parametrize("kind", leaves(errors.ServingError), ids=lambda kind: kind.__name__)
def test_every_error_code_stands_in_the_readme_with_its_status(kind: type[ServingError]) -> None:
    assert re.search(rf"^\| [^|]*{kind.status}[^|]*\|[^|]*`{kind.code}`", README, re.MULTILINE)


def test_every_code_of_nginx_stands_in_the_readme() -> None:
    codes = set(re.findall(r'"code": "(\w+)"', (ROOT / "nginx.conf").read_text()))
    assert codes
    assert not [code for code in codes if f"`{code}`" not in README]


def test_every_route_stands_in_the_readme() -> None:
    rules = {rule.rule for rule in create_app(Settings.from_env({})).url_map.iter_rules()}
    assert not [rule for rule in rules if rule not in README]


@pytest.mark.parametrize("name", ["resnet", "yolov5", "bert"])
def test_every_parameter_of_a_client_stands_in_its_rows(name: str) -> None:
    page = (ROOT / "docs/calling.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    client = import_module(f"clients.{name}").Client
    assert {found for row in rows for found in re.findall(r"`(\w+)`", row.split("|")[2])} == {
        parameter.name for parameter in client.parameters
    }


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)]+))?\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in headings(file.read_text()), f"{page.name}: {target}#{anchor}"


def headings(page: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_leads_from_the_first_run_to_the_endpoint() -> None:
    order = ["Run", "Call", "Add your model", "Build for your GPU", "Image", "Deploy", "Simulate"]
    assert re.findall(r"^## (.+)$", README, re.MULTILINE)[: len(order)] == order
    assert {block.section for block in SHELL} == set(order)


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.section)
def test_every_block_of_commands_is_executed_or_says_what_it_needs(block: Block) -> None:
    if block.marker.startswith(EXECUTED_BY):
        place = ROOT / block.marker.removeprefix(EXECUTED_BY)
        files = sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
        text = "".join(file.read_text() for file in files)
        assert f'commands("{block.section}")' in text or all(command in text for command in block.commands)
    else:
        assert block.marker in ("", *NEEDS)


def test_a_block_with_an_unknown_marker_is_neither_executed_nor_excused() -> None:
    (block,) = read_blocks("## Run\n\n<!-- needs luck -->\n```sh\ntrue\n```\n")
    assert block.marker == "needs luck"
    with pytest.raises(AssertionError):
        test_every_block_of_commands_is_executed_or_says_what_it_needs(block)


@pytest.mark.parametrize(
    ("language", "shown", "output"),
    [
        ("json", '{"classes": [{"label": "6", "score": 0.95}]}', '{"classes": [{"label": "8", "score": 0.95}]}'),
        ("json", '{"classes": [{"score": 0.95}]}', '{"classes": [{"score": 0.85}]}'),
        ("json", '{"classes": [1.0]}', '{"classes": [1.0, 2.0]}'),
        ("json", '{"classes": [1.0, …]}', '{"classes": [1.1, 2.0]}'),
        ("text", "resnet version 1", "resnet version 1 and more"),
        ("text", "6 0.9558", "6 0.8558"),
    ],
)
def test_an_output_that_is_another_one_is_noticed(language: str, shown: str, output: str) -> None:
    compare(shown.replace("…", "2.0"), Block("", language, shown))
    with pytest.raises(AssertionError):
        compare(output, Block("", language, shown))


def test_no_block_escapes_the_reader() -> None:
    assert len(BLOCKS) == README.count("\n```") / 2


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    one = Reader(fresh_checkout(tmp_path_factory.mktemp("reader")))
    yield one
    one.leave()


@pytest.mark.parametrize("block", TO_FOLLOW, ids=[f"{block.section}: {block.commands[0][:60]}" for block in TO_FOLLOW])
def test_what_the_readme_says_to_run_gives_what_it_shows(reader: Reader, block: Block) -> None:
    reader.follow(block)


@pytest.mark.parametrize("command", [command for command in commands("Deploy") if "-m deploy" in command])
def test_deploy_takes_the_readme_s_command_lines(command: str) -> None:
    environ = {**os.environ, "AWS_REGION": "eu-central-1"}
    done = subprocess.run(
        ["bash", "-ec", f"{command} --dry-run"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_an_answer_of_each_bundled_model() -> None:
    calls = [f"{block.text}{after.language}" for block, after in pairwise(BLOCKS)]
    assert {found[1] for call in calls if (found := re.search(r"model_name=(\w+).*json$", call, re.DOTALL))} == {
        "resnet",
        "yolov5",
        "bert",
        "iris",
    }


def test_contributing_says_what_each_folder_of_tests_covers_and_each_package_has_one() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| Tests in `tests/` |")[2]
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/*.py")}
    assert sorted(folder for folder in folders if f"`{folder}`" not in table) == []
    assert {path.parent.name for path in (ROOT / "serving").glob("*/*.py")} <= folders
