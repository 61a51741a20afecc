"""A control program that answers oddly, with its answers written down."""

import logging
from typing import Any

import pytest

from mps import main
from mps.frontend import ControlError
from mps.limits import Defaults, Namespaces
from mps.protocol import MIB, MpsRefusedError, Namespace
from tests.mps.rig import gpu, spec
from tests.polling import eventually_sync

ROW = "{name},card,Ready,{memory},{percent},0,/pipe"


class Answers:
    """A front end whose answers are given; what was asked is kept."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked: list[str] = []

    def ask(self, *commands):
        self.asked += commands
        return self.answers.pop(0) if self.answers else []

    def call(self, *words):
        return self.ask(" ".join(words))


def script(*answers: Any) -> Any:  # stands for a FrontEnd
    return Answers(*answers)


def row(name="a", memory="2G", percent="10"):
    return ROW.format(name=name, memory=memory, percent=percent)


@pytest.mark.parametrize("answer", [[], ["a", "b", "c"]])
def test_an_answer_of_another_shape_is_no_answer(answer):
    with pytest.raises(ControlError, match="wanted its two defaults"):
        Defaults(script(answer), spec()).wrong()


def test_defaults_of_protocol_3_are_those_of_its_server():
    front = script([], [], [], [row("default", "14G", "25")])
    Defaults(front, spec(protocol=3)).put()
    assert front.asked == [
        "server list --format=csv,noheader",
        f"server create card --allowed-devices={gpu(0)}",
        "server set card --pinned-memory-limit=14336M --active-thread-percentage=25",
        "namespace list --server=card --format=csv,noheader",
    ]
    without = script(["card,0"], [row("default", "-", "-")])
    Defaults(without, spec(memory=None, percent=None, protocol=3)).put()
    assert len(without.asked) == 2
    assert Defaults(script([]), spec(protocol=3)).wrong() == "server card is not there"
    with pytest.raises(ControlError, match="wanted 7 columns"):
        Defaults(script(["default,card"]), spec(protocol=3)).wrong()


def test_a_namespace_that_is_not_made_or_does_not_go_is_told_of(tmp_path):
    wanted = Namespace("a", 2048 * MIB, 10)
    with pytest.raises(ControlError, match="namespace a was not made"):
        Namespaces(script([], [], [], []), tmp_path).put(wanted)
    with pytest.raises(ControlError, match="memory limit 1G, wanted 2048M"):
        Namespaces(script([row()], [], [row(memory="1G")]), tmp_path).put(wanted)
    with pytest.raises(ControlError, match="namespace a is still there"):
        Namespaces(script([row()], [], [row()]), tmp_path).remove("a")
    Namespaces(script([]), tmp_path).remove("a")


def test_namespaces_are_made_as_they_have_to_be(tmp_path):
    wanted = {name: Namespace(name, 2048 * MIB, 10) for name in ("a", "b")}
    front = script([row("c"), row("a")], [row("c")], [], [], [], [], [], [row("b")])
    Namespaces(front, tmp_path).match(wanted)
    changed = [line for line in front.asked if not line.startswith("namespace list")]
    assert [line.split()[1:3] for line in changed] == [
        ["delete", "c"],
        ["create", "b"],
        ["set", "b"],
    ]


def test_a_first_start_whose_rest_does_not_go_is_cleared_later(rig, monkeypatch):
    def stuck(_paths):
        raise PermissionError(1, "Operation not permitted", "/x")

    with rig.supervisor() as one:
        one.info()
        rig.knobs(exits=3)
        monkeypatch.setattr("mps.layout.remove_folders", stuck)
        with pytest.raises(MpsRefusedError, match="exited with status 3"):
            one.ensure(spec())
        assert "; /x: Operation not permitted" in (one.cards()[0].failure or "")
        monkeypatch.undo()
        rig.knobs()
        assert one.ensure(spec()).running
        one.stop(gpu(0))
    assert rig.traces() == []


def test_a_namespace_whose_limits_cannot_change_keeps_those_it_had(rig3):
    with rig3.supervisor() as one:
        one.ensure(spec(protocol=3))
        first = Namespace("a", 2048 * MIB, 10)
        one.ensure_namespace(gpu(0), first)
        with pytest.raises(MpsRefusedError, match="memory limit 2G, wanted none"):
            one.ensure_namespace(gpu(0), Namespace("a", None, 10))
        assert one.namespaces(gpu(0)) == (first,)


def test_a_fault_of_ours_does_not_end_a_lane(rig, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("broken")

    with rig.supervisor() as one:
        one.ensure(spec())
        monkeypatch.setattr("mps.keeper.Keeper.tick", broken)
        eventually_sync(lambda: "looking after card" in caplog.text)
        monkeypatch.undo()
        assert one.ensure(spec()).running


def test_what_an_earlier_supervisor_left_and_does_not_go_is_told_of(rig, monkeypatch, caplog):
    def stuck(*_):
        raise ControlError("process 7 does not end, not even by SIGKILL")

    folder = rig.settings.run_dir / "00000000-11111111"
    folder.mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr("mps.daemon.Daemon.end", stuck)
        with rig.supervisor():
            assert "left by an earlier supervisor: process 7" in caplog.text
            assert f"{folder} is left as it is" in caplog.text


def test_the_log_goes_to_standard_error(monkeypatch):
    given = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **options: given.update(options))
    main.set_up_log("warning")
    assert given["level"] == "WARNING"
