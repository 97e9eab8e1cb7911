"""The README is true: its settings, errors and routes are complete, its example works as it stands."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from predictor import create_app
from serving import errors
from serving.errors import ServingError
from serving.settings import Settings, markdown
from tests.harness import ROOT, Server

README = (ROOT / "README.md").read_text()


def leaves(kind: type[ServingError]) -> list[type[ServingError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


def test_the_settings_table_is_the_one_in_the_code() -> None:
    shown = README.split("<!-- settings -->\n")[1].split("<!-- end of settings -->")[0]
    assert shown.strip() == markdown().strip()


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


def files_of_the_example() -> dict[str, str]:
    return dict(re.findall(r"^`(iris/[\w.]+)`:\n\n```\w+\n(.*?)^```", README, re.MULTILINE | re.DOTALL))


def test_the_example_of_an_own_model_works_as_it_stands(tmp_path: Path) -> None:
    for name, text in files_of_the_example().items():
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run([sys.executable, tmp_path / "models/iris/make_model.py"], check=True)
    server = Server(tmp_path, tmp_path / "models").wait_ready()
    try:
        call = re.search(r"(curl [^\n]*model_name=iris.*?)\n```\n\n```json\n(.*?)\n```", README, re.DOTALL)
        assert call
        reply = subprocess.run(words(call[1], server), capture_output=True, check=True).stdout
        shown, got = json.loads(call[2]), json.loads(reply)
        assert got["predictions"][0].pop("score") == pytest.approx(shown["predictions"][0].pop("score"), abs=1e-4)
        assert got == shown
    finally:
        assert server.stop() == 0


def words(command: str, server: Server) -> list[str]:
    """A command of the README, for this server, as a shell would split it."""
    return [*shlex.split(command.replace("\\\n", " ").replace("http://localhost:8080", server.url)), "-s"]


CALLS = re.findall(r"(curl [^\n]*model_name=(resnet|yolov5|bert).*?)\n```\n\n```json\n(.*?)\n```", README, re.DOTALL)


@pytest.mark.parametrize(("command", "name", "shown"), CALLS, ids=[name for _, name, _ in CALLS])
def test_each_curl_line_gives_the_answer_that_the_readme_shows(
    server: Server, command: str, name: str, shown: str
) -> None:
    reply = json.loads(subprocess.run(words(command, server), capture_output=True, check=True, cwd=ROOT).stdout)
    assert_alike(reply, json.loads(shown.replace(", …]", "]")))


def assert_alike(got: object, shown: object) -> None:
    """Equal but for the last digits of numbers; a list that the README cuts short is compared as far as it goes."""
    if isinstance(shown, dict):
        assert isinstance(got, dict)
        assert got.keys() == shown.keys()
        for key in shown:
            assert_alike(got[key], shown[key])
    elif isinstance(shown, list):
        assert isinstance(got, list)
        for ours, theirs in zip(got, shown, strict=False):
            assert_alike(ours, theirs)
    elif isinstance(shown, float):
        assert got == pytest.approx(shown, abs=0.02, rel=0.01)
    else:
        assert got == shown


def test_the_readme_shows_an_answer_of_each_bundled_model() -> None:
    assert {name for _, name, _ in CALLS} == {"resnet", "yolov5", "bert"}
