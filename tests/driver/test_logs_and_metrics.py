"""Log lines for people and machines, and what is counted."""

import asyncio
import json
import logging
import sys

import pytest

from driver import logs
from driver.apply.executor import Outcome
from driver.logs import JsonFormatter, TextFormatter
from driver.metrics import Metrics
from driver.series import RECOVERIES
from driver.settings import Settings
from tests.driver.machine import claim, ref, uid


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    kept = root.handlers[:], root.level
    yield root
    root.handlers[:], level = kept
    root.setLevel(level)


def line(message="hello %s", *args, **extra):
    record = logging.LogRecord("driver.x", logging.WARNING, "x.py", 1, message, args, None)
    record.created = 0.0
    vars(record).update(extra)
    return record


def test_a_json_line_has_the_message_and_the_fields():
    found = json.loads(JsonFormatter().format(line("hello %s", "you", claimUID="u", gpus=["a"])))
    assert found == {
        "ts": "1970-01-01T00:00:00.000+00:00",
        "level": "warning",
        "logger": "driver.x",
        "msg": "hello you",
        "claimUID": "u",
        "gpus": ["a"],
    }


def test_a_text_line_has_the_message_and_the_fields():
    found = TextFormatter().format(line("hello %s", "you", claimUID="u", gpus=["a", "b"]))
    assert found == "1970-01-01T00:00:00.000+00:00 WARNING hello you claimUID=u gpus=a,b"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_is_in_the_line(formatter):
    try:
        {"a": 1}.pop("why")
    except KeyError:
        record = line("oh")
        record.exc_info = sys.exc_info()
    text = formatter.format(record)
    assert "KeyError: 'why'" in text
    assert "Traceback" in text


@pytest.mark.parametrize("form", logs.FORMATS)
def test_the_root_logger_is_set_up(root_logger, capsys, form):
    logs.set_up(form, "warning")
    logging.getLogger("driver").info("unheard")
    logging.getLogger("driver").warning("heard", extra={"claimUID": "u"})
    (text,) = capsys.readouterr().err.splitlines()
    if form == "json":
        assert json.loads(text)["claimUID"] == "u"
    else:
        assert text.endswith("WARNING heard claimUID=u")


@pytest.mark.parametrize("form", logs.FORMATS)
async def test_lines_about_a_claim_carry_its_uid_and_devices(
    machine, parts, root_logger, capsys, form
):
    logs.set_up(form, "info")
    await parts.driver.prepare(claim(1, machine.device(0)))
    machine.cdi_file().unlink()
    await parts.driver.prepare(claim(1, machine.device(0)))  # rewritten
    await parts.driver.prepare(claim(1, machine.device(1)))  # allocated anew
    await parts.driver.unprepare(ref())
    await asyncio.sleep(0.02)  # lines about what went well come after the answer
    lines = [each for each in capsys.readouterr().err.splitlines() if "claim" in each]
    assert len(lines) == 5
    for each in lines:
        if form == "json":
            found = json.loads(each)
            assert found["claimUID"] == uid()
            assert set(found["devices"]) <= {machine.device(0), machine.device(1)}
        else:
            assert f"claimUID={uid()}" in each
            assert f"devices={machine.device(0)}" in each or machine.device(1) in each


# Metrics ---------------------------------------------------------------------------------


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_series_exist_at_zero():
    metrics = Metrics()
    for method in ("prepare", "unprepare"):
        assert sample(metrics, "aliquot_claim_operation_seconds_count", method=method) == 0
        assert sample(metrics, "aliquot_claim_errors_total", method=method) == 0
    for outcome in RECOVERIES:
        assert sample(metrics, "aliquot_recovered_claims_total", outcome=outcome) == 0
    assert {each.value for each in Outcome} - set(RECOVERIES) == {"intact"}


def test_work_is_counted_with_its_errors():
    metrics = Metrics()
    metrics.claim_done("prepare", ref(), 0.003, "")
    metrics.claim_done("prepare", ref(), 0.2, "refused")
    assert sample(metrics, "aliquot_claim_operation_seconds_count", method="prepare") == 2
    assert sample(metrics, "aliquot_claim_operation_seconds_sum", method="prepare") == 0.203
    assert sample(metrics, "aliquot_claim_errors_total", method="prepare") == 1
    assert sample(metrics, "aliquot_claim_errors_total", method="unprepare") == 0


def test_a_watched_gauge_is_read_when_it_is_scraped():
    metrics, values = Metrics(), [1.0]
    metrics.watch("aliquot_things", "Things", lambda: values[0])
    assert b"aliquot_things 1.0" in metrics.render()
    values[0] = 2.0
    assert b"aliquot_things 2.0" in metrics.render()


# Settings --------------------------------------------------------------------------------


def test_folders_follow_the_kubelet_root_and_the_drivers_name(tmp_path):
    settings = Settings("node-1", kubelet_root=tmp_path, driver_name="gpu.example.com")
    assert settings.plugin_folder == tmp_path / "plugins/gpu.example.com"
    assert settings.journal_dir == settings.plugin_folder / "claims"
    assert settings.known_file.parent.parent == settings.plugin_folder
    assert settings.known_file.parent != settings.journal_dir
    assert Settings("node-1", plugin_dir=tmp_path / "p").plugin_folder == tmp_path / "p"


def test_hardware_is_below_the_simulation_or_the_driver_root(tmp_path):
    assert Settings("n", driver_root=tmp_path).root == tmp_path
    simulated = Settings("n", simulate="h100-80gb", simulate_root=tmp_path / "sim")
    assert simulated.root == tmp_path / "sim"
