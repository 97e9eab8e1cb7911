"""Tests that the README and docs/ are correct: they list all settings, errors and routes, and their
commands do what the pages show."""

import re
import shlex
from importlib import import_module

import pytest

from clients.base import Parameter
from predictor import create_app
from serving.clients import client_names
from serving.codecs import IMAGE, PIXELS
from serving.settings.explain import markdown
from serving.settings.settings import Settings
from tests.support.account import account
from tests.support.harness import ROOT
from tests.support.readme import EXECUTED_BY, NEEDS, README, Block, blocks, commands, compare, shell

pytestmark = pytest.mark.unit

TEXT = (ROOT / README).read_text()
# the README, docs/ and the guides
PAGES = [README, *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md")))]
SHELL = [(page, block) for page in PAGES for block in shell(page)]


def test_print_the_page_of_settings() -> None:
    assert (ROOT / "docs/settings.md").read_text() == markdown()


def image_settings() -> str:
    """Return the rows of the table of settings in docs/clients.md. Clients that share a setting
    share a row, which names no client if all of them but `object_detection` have it."""
    modules = {name: import_module(f"clients.{name}") for name in client_names()}
    clients = {
        name: module.Client
        for name, module in modules.items()
        if module.Client.codec in (IMAGE, PIXELS)
    }
    owners: dict[Parameter, list[str]] = {}
    for name, client in clients.items():
        for setting in client.settings:
            owners.setdefault(setting, []).append(name)
    rows = ["| Setting | Default, then other values | Meaning |", "|---|---|---|"]
    for setting, names in sorted(owners.items(), key=lambda item: -len(item[1])):
        others = clients.keys() - set(names)
        listed = " and ".join(f"`{name}`" for name in names)
        of = f", not of `{others.pop()}`" if len(others) == 1 else f" of {listed}"
        of = of.replace(", not of `object_detection`", "")
        default = f"`{str(setting.default).lower()}`".replace("`()`", "none")
        values = [default, *(choice for choice in setting.choices if choice != setting.default)]
        rows.append(f"| `{setting.name}`{of} | {', '.join(values)} | {setting.help} |")
    return "\n".join(rows) + "\n"


def test_list_every_setting_of_an_image_client() -> None:
    table = image_settings()
    if table not in (ROOT / "docs/clients.md").read_text():
        pytest.fail(f"docs/clients.md should have this table:\n\n{table}", pytrace=False)


def test_list_every_route_in_the_table() -> None:
    page = (ROOT / "docs/calling.md").read_text()
    app = create_app(Settings.from_env({"SERVE_KSERVE": "true"}))
    rules = {
        rule.rule for rule in app.url_map.iter_rules() if rule.endpoint != "examples.answer_example"
    }
    routes = {re.sub("<(path:|plain:)?name>", "M", rule) for rule in rules}
    routes = {route.replace("/versions/<version>", "") for route in routes}
    assert "/v2/models/M/infer" in routes
    assert not [route for route in routes if route not in page]


@pytest.mark.parametrize("name", client_names())
def test_list_every_parameter_of_a_client(name: str) -> None:
    page = (ROOT / "docs/calling.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    client = import_module(f"clients.{name}").Client
    assert {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[2])} == {
        parameter.name for parameter in client.parameters
    }


def test_link_only_to_existing_files_and_headings() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    for page in pages:
        for target, anchor in re.findall(
            r"\]\((?!http)([^)#\s]*)(?:#([^)]+))?\)", page.read_text()
        ):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
            headings = {
                re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
            }
            assert not anchor or anchor in headings, f"{page.name}: {target}#{anchor}"


def test_name_only_tests_that_exist() -> None:
    named = {
        (page, path)
        for page in PAGES
        for path in re.findall(r"`(tests/[\w/.]+)`", (ROOT / page).read_text())
    }
    assert not [(page, path) for page, path in named if not (ROOT / path).exists()]


def test_show_only_lines_of_the_log_that_the_code_writes() -> None:
    """The constant parts of each line are in the code, except for lines that are marked as the
    platform's."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = page.partition("## In CloudWatch")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert lines
    varies = r"…|['()]|tritonserver|SIGKILL|/opt/ml/model|SERVE_X=|\b\d+\b|\b[NM]\b"
    parts = {part.strip() for line in lines for part in re.split(varies, line)}
    files = [ROOT / "serve", *(ROOT / "serving").rglob("*.py")]
    code = "".join(re.sub(r'"\s+f?"', "", file.read_text(encoding="utf-8")) for file in files)
    assert sorted(part for part in parts if part not in code) == []


def test_list_every_page_once_in_the_readme() -> None:
    listed = TEXT.split("## Pages")[1]
    pages = [
        *PAGES[1:],
        *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*/README.md")),
    ]
    assert [page for page in pages if listed.count(f"]({page})") != 1] == []


@pytest.mark.parametrize(
    ("page", "block"), SHELL, ids=[f"{page}: {block.section}" for page, block in SHELL]
)
def test_run_every_block_of_commands_or_say_what_it_needs(page: str, block: Block) -> None:
    if block.marker.startswith(EXECUTED_BY):
        path = ROOT / block.marker.removeprefix(EXECUTED_BY)
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        text = "".join(file.read_text() for file in files)
        called = (
            f'commands("{block.section}")'
            if page == README
            else f'commands("{block.section}", "{page}")'
        )
        assert called in text or all(command in text for command in block.commands)
    else:
        assert block.marker in ("", *NEEDS)


@pytest.mark.parametrize(
    ("language", "shown", "output"),
    [
        (
            "json",
            '{"classes": [{"label": "6", "score": 0.95}]}',
            '{"classes": [{"label": "8", "score": 0.95}]}',
        ),
        ("json", '{"classes": [{"score": 0.95}]}', '{"classes": [{"score": 0.85}]}'),
        ("json", '{"classes": [1.0]}', '{"classes": [1.0, 2.0]}'),
        ("json", '{"classes": [1.0, …]}', '{"classes": [1.1, 2.0]}'),
        ("text", "resnet version 1", "resnet version 1 and more"),
        ("text", "6 0.9558", "6 0.8558"),
    ],
)
def test_notice_a_different_output(language: str, shown: str, output: str) -> None:
    compare(shown.replace("…", "2.0"), Block("", language, shown))
    with pytest.raises(AssertionError):
        compare(output, Block("", language, shown))


@pytest.mark.parametrize("page", PAGES)
def test_read_every_block_of_commands(page: str) -> None:
    assert len(blocks(page)) == (ROOT / page).read_text().count("\n```") / 2


def test_parse_the_readme_s_command_lines_with_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [shlex.split(command) for command in commands("Deploy") if "-m deploy" in command]
    assert [words[3] for words in lines] == ["push", "create", "invoke", "delete"]
    with account() as aws:
        for words in lines:
            assert aws.deploy(*words[3:], "--dry-run") == 0, capsys.readouterr().err


def test_list_each_folder_of_tests_in_contributing() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| Tests in `tests/` |")[2]
    folders = {
        path.parent.relative_to(ROOT / "tests").parts[0]
        for path in (ROOT / "tests").glob("*/**/*.py")
    }
    assert sorted(folder for folder in folders if f"`{folder}`" not in table) == []
    assert {path.parent.name for path in (ROOT / "serving").glob("*/*.py")} <= folders
