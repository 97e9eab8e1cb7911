"""delete against moto's server: asking, waiting, and what is left alone."""

import io
import sys

import pytest

from deploy.commandline import Host, main
from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE


def test_it_lists_what_goes_and_does_nothing_without_a_yes(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    before = aws.inventory()
    assert aws.deploy("delete", answer=False) == 1
    err = capsys.readouterr().err
    for line in (
        "  endpoint triton-multi-model\n",
        f"  model {before['models'][0]}\n",
        f"  endpoint configuration {before['configs'][0]}\n",
    ):
        assert line in err
    assert err.endswith("python -m deploy delete: nothing was deleted\n")
    assert aws.inventory() == before
    assert aws.deploy("delete") == 0
    assert aws.inventory()["endpoints"] == []


def test_without_a_terminal_it_needs_a_yes_on_the_command_line(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["delete"], Host(aws.session)) == 2
    assert "--yes confirms" in capsys.readouterr().err
    assert aws.inventory()["endpoints"] == ["triton-multi-model"]


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("YES\n", 0), ("\n", 1), ("no\n", 1), ("", 1)])
def test_on_a_terminal_a_person_is_asked(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, code: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert aws.deploy("create", "--image", IMAGE, "--model-only") == 0
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(["delete"], Host(aws.session)) == code
    assert "delete it? [y/N] " in capsys.readouterr().err
    assert bool(aws.inventory()["models"]) == bool(code)


def test_it_waits_for_an_endpoint_that_is_being_created(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    aws.set_endpoint("Creating")
    aws.while_asleep = [lambda: aws.set_endpoint("InService")]
    assert aws.deploy("delete", "--yes") == 0
    assert "0:00:10 endpoint triton-multi-model: InService\ndeleting endpoint" in capsys.readouterr().err


def test_there_may_be_nothing_to_delete(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("delete", "--yes") == 0
    assert capsys.readouterr().out.endswith("nothing to delete\n")


def test_two_stacks_do_not_touch_each_other(aws: Aws) -> None:
    for name in ("one", "one-two"):
        assert aws.deploy("create", "--name", name, "--image", IMAGE) == 0
        assert aws.deploy("autoscale", "--name", name) == 0
    assert aws.deploy("delete", "--name", "one", "--yes") == 0
    left = aws.inventory()
    assert left["endpoints"] == ["one-two"]
    assert [name.startswith("one-two-") for name in left["models"] + left["configs"]] == [True, True]
    assert [target["ResourceId"] for target in left["targets"]] == ["endpoint/one-two/variant/AllTraffic"]
