"""Values, their schema, and what must agree with the program: without helm."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from driver.settings import DEFAULT_DRIVER, Settings
from driver.sim.profiles import MAX_CARDS, PROFILES, parse_simulate
from e2e.sites.helm import merged

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "aliquot"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
FREE = {"policy", "affinity", "global"}
"""What the schema does not look into: the driver checks its policy, Kubernetes the rest."""


def problems(values: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft7Validator(SCHEMA)
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in validator.iter_errors(merged(VALUES, values))
    ]


def test_the_defaults_are_valid():
    assert problems({}) == []


@pytest.mark.parametrize("path", sorted((ROOT / "e2e" / "values").glob("*.yaml")), ids=str)
def test_the_value_files_of_the_tests_are_valid(path: Path):
    assert problems(yaml.safe_load(path.read_text())) == []


def closed(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Objects with listed keys that take others too."""
    for name, part in schema.get("properties", {}).items():
        here = f"{path}/{name}"
        if "properties" in part and part.get("additionalProperties") is not False:
            yield here
        yield from closed(part, here)


def test_a_key_that_is_not_listed_is_refused_everywhere():
    assert SCHEMA["additionalProperties"] is False
    assert list(closed(SCHEMA)) == []
    assert any("'imgae'" in text for text in problems({"imgae": {}}))
    assert any("'tyop'" in text for text in problems({"shares": {"tyop": 1}}))


def keys(values: dict[str, Any]) -> set[str]:
    return set(values) - FREE


def test_values_and_schema_list_the_same_keys():
    assert keys(VALUES) == keys(SCHEMA["properties"])
    for name, part in SCHEMA["properties"].items():
        if "properties" in part:
            assert set(VALUES[name]) == set(part["properties"]), name


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_that_can_be_simulated_is_taken(profile: str):
    assert problems({"simulate": profile}) == []
    assert problems({"simulate": f"{profile}:{MAX_CARDS}"}) == []


@pytest.mark.parametrize("wrong", ["h100", "h100-80gb:0", f"h100-80gb:{MAX_CARDS + 1}", "t4:08"])
def test_what_the_driver_would_not_simulate_is_refused(wrong: str):
    assert [text for text in problems({"simulate": wrong}) if text.startswith("simulate:")]


def test_the_driver_would_not_simulate_it_either():
    for wrong in ("h100", "h100-80gb:0", f"h100-80gb:{MAX_CARDS + 1}"):
        with pytest.raises(ValueError, match="simulated hardware"):
            parse_simulate(wrong)


def test_defaults_are_the_programs():
    assert VALUES["driverName"] == DEFAULT_DRIVER
    assert VALUES["kubeletRoot"] == str(Settings.kubelet_root)
    assert VALUES["cdiDir"] == str(Settings.cdi_dir)
    assert VALUES["simulateRoot"] == str(Settings.simulate_root)


def test_chart_image_and_program_have_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_the_image_is_built_of_what_the_wheel_is_built_of():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ignore = (ROOT / ".dockerignore").read_text()

    sent = {line[1:] for line in ignore.splitlines() if line.startswith("!")}
    assert sent >= {*packages, "constraints.txt", "pyproject.toml", "README.md"}


def test_the_tools_of_the_image_are_pinned():
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    constraints = (ROOT / "constraints.txt").read_text()

    hatchling = re.search(r"hatchling==(\S+)", dockerfile)
    assert hatchling
    assert f"hatchling=={hatchling[1]}" in constraints
