import json

import kubernetes_validate
import pytest
import yaml

from cli.checks.cluster import MINIMUM
from cli.render import _OLDEST
from driver.sim.profiles import PROFILES

VERSIONS = ("1.34", "1.35", "1.36", "1.37")


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_renders_objects_that_every_version_takes(aliquot, profile):
    result = aliquot("render", profile, "--count", 3)
    assert result.exit_code == 0
    objects = list(yaml.safe_load_all(result.output))
    devices = [one for each in objects for one in each["spec"].get("devices", ())]
    types = [one["attributes"]["type"]["string"] for one in devices]
    assert types == ["gpu"] * 3 + ["mps"] * 3 + ["timeslice"] * 3
    for each in objects:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


def test_yaml_and_json_say_the_same(aliquot):
    arguments = ("render", "h200", "--modes", "gpu")
    as_yaml = yaml.safe_load(aliquot(*arguments).output)
    assert json.loads(aliquot(*arguments, "-o", "json").output) == as_yaml


def test_several_resource_slices_are_one_list_in_json_and_documents_in_yaml(aliquot):
    arguments = ("render", "t4", "--count", 70, "--features", "taints")
    found = json.loads(aliquot(*arguments, "-o", "json").output)
    assert (found["kind"], len(found["items"])) == ("List", 2)
    assert list(yaml.safe_load_all(aliquot(*arguments).output)) == found["items"]


def test_without_taints_a_resource_slice_takes_twice_as_many_devices(aliquot):
    result = aliquot("render", "t4", "--count", 70, "--features", "")
    (only,) = yaml.safe_load_all(result.output)
    assert len(only["spec"]["devices"]) == 70


def test_the_node_name_is_the_pool_and_decides_the_uuids(aliquot):
    first, again, other = (
        yaml.safe_load(
            aliquot("render", "l4", "--modes", "gpu", "--count", 1, "--node-name", name).output
        )
        for name in ("a.example", "a.example", "b.example")
    )
    assert first == again
    assert first["spec"]["pool"]["name"] == first["spec"]["nodeName"] == "a.example"
    assert first["spec"]["devices"] != other["spec"]["devices"]


def test_a_table_has_a_row_for_each_card(aliquot):
    arguments = ("a100-40gb", "--modes", "gpu", "--count", 2, "-o", "table")
    lines = aliquot("render", *arguments).output.splitlines()
    assert len(lines) == 3
    assert all("NVIDIA A100-SXM4-40GB" in line and "nvswitch" in line for line in lines[1:])


def test_a_policy_takes_cards_out(aliquot, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus: [{select: {all: true}, modes: []}]\n")
    result = aliquot("render", "l4", "--config", policy)
    assert "devices" not in yaml.safe_load(result.output)["spec"]


def test_the_class_asks_for_what_a_device_may_lack_safely(aliquot):
    found = list(yaml.safe_load_all(aliquot("render", "--classes").output))
    for each in found:
        kubernetes_validate.validate(each, "1.34", strict=True)
    names = [each["metadata"]["name"] for each in found]
    assert names == ["gpu", "gpu-share", "gpu-timeslice", "mig"]
    whole = found[0]
    (selector,) = whole["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        "device.driver == 'gpu.aliquot.dev' && "
        "device.attributes['gpu.aliquot.dev'].?wholeCard.orValue(false)"
    )


def test_the_class_follows_the_drivers_name_and_the_extended_resource(aliquot):
    result = aliquot(
        *("render", "--classes", "--driver-name", "gpu.example.com"),
        *("--extended-resource-name", "nvidia.com/gpu", "-o", "json"),
    )
    found = json.loads(result.output)["items"][0]
    kubernetes_validate.validate(found, "1.37", strict=True)
    assert found["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "gpu.example.com" in found["spec"]["selectors"][0]["cel"]["expression"]


def test_a_board_has_a_class_for_each_of_its_partitions(aliquot):
    found = list(yaml.safe_load_all(aliquot("render", "a100-40gb", "--classes").output))
    for each in found:
        kubernetes_validate.validate(each, "1.37", strict=True)
    resources = {
        each["metadata"]["name"]: each["spec"].get("extendedResourceName") for each in found
    }
    assert resources == {
        "gpu": "nvidia.com/gpu",
        "gpu-share": None,
        "gpu-timeslice": None,
        "mig": None,
        "mig-1g.5gb": "nvidia.com/mig-1g.5gb",
        "mig-1g.10gb": "nvidia.com/mig-1g.10gb",
        "mig-2g.10gb": "nvidia.com/mig-2g.10gb",
        "mig-3g.20gb": "nvidia.com/mig-3g.20gb",
        "mig-4g.20gb": "nvidia.com/mig-4g.20gb",
        "mig-7g.40gb": "nvidia.com/mig-7g.40gb",
        "mig-1g.5gb-me": "nvidia.com/mig-1g.5gb.me",
    }


def test_classes_leave_the_resources_alone_where_a_device_plugin_has_them(aliquot):
    arguments = ("render", "a30", "--classes", "--no-extended-resources")
    found = list(yaml.safe_load_all(aliquot(*arguments).output))
    assert len(found) == 9
    assert not any("extendedResourceName" in each["spec"] for each in found)


def test_cards_are_shown_whole_and_cut(aliquot):
    result = aliquot("render", "h100-80gb", "--count", 1, "--modes", "gpu,mig", "-o", "table")
    lines = result.output.splitlines()
    assert len(lines) == 1 + 1 + 25
    ampere = ("render", "a30", "--count", 1, "--modes", "gpu,mig", "-o", "table")
    assert len(aliquot(*ampere).output.splitlines()) == 1 + 1
    assert len(aliquot(*ampere, "--mig-mode").output.splitlines()) == 1 + 13


def test_the_class_as_a_table(aliquot):
    lines = aliquot("render", "--classes", "-o", "table").output.splitlines()
    assert lines[0].split() == ["CLASS", "SELECTOR"]
    assert lines[1].startswith("gpu ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "no profile 'nope'; known: a30"),
        (["l4", "--count", "0"], "must be 1 to 512"),
        (["l4", "--count", "513"], "must be 1 to 512"),
        ([], "which PROFILE? Known: a30"),
        (["l4", "--features", "taints,colour"], "no feature colour; known: taints"),
        (["l4", "--node-name", "Node_1"], "'Node_1' is not a DNS name"),
        (["l4", "--extended-resource-name", "a/b"], "add --classes"),
        (["l4", "--modes", "gpu,colour"], "'--modes': no mode 'colour'; known: gpu, mps"),
        (["l4", "--modes", ""], "'--modes': no mode ''; known: gpu, mps, timeslice, mig"),
        (["l4", "--modes", "gpu,"], "no mode ''"),
        (["l4", "--modes", "gpu,mps,gpu"], "gpu stands there twice"),
        (["l4", "--extended-resource-name", ""], "'' has no domain"),
        (["l4", "--modes", "gpu", "--config", "p.yaml"], "give one of them"),
        (["nope", "--classes"], "no profile 'nope'"),
        (["l4", "--config", "/nowhere/policy.yaml"], "/nowhere/policy.yaml"),
    ],
)
def test_bad_input_is_named_with_what_is_possible(aliquot, arguments, said):
    result = aliquot("render", *arguments)
    assert result.exit_code != 0
    assert said in result.output


def test_every_problem_of_a_policy_is_listed(aliquot, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("taintEffect: Never\norphanGraceSeconds: -1\n")
    result = aliquot("render", "l4", "--config", policy)
    assert result.exit_code == 1
    assert "taintEffect" in result.output
    assert "orphanGraceSeconds" in result.output


@pytest.mark.parametrize(
    ("version", "modes", "devices"),
    [
        ("1.36.3", "gpu,mps", ["gpu", "mps"]),
        ("v1.37", "mps,gpu", ["gpu", "mps"]),
        ("1.36.2", "gpu,mps", ["gpu"]),
        ("1.35", "mps,gpu", ["mps"]),
        ("1.34", "timeslice", ["timeslice"]),
    ],
)
def test_the_version_decides_what_stands_side_by_side(aliquot, version, modes, devices):
    arguments = ("l4", "--count", 1, "--kubernetes", version, "--modes", modes, "-o", "table")
    lines = aliquot("render", *arguments).output.splitlines()[1:]
    assert [line.split()[2] for line in lines] == devices


def test_a_version_without_the_api_is_refused_with_what_is_supported(aliquot):
    for version in ("1.20", "v1.33.9", "1.0"):
        result = aliquot("render", "l4", "--kubernetes", version)
        assert result.exit_code == 2
        assert f"{version} has no resource.k8s.io/v1; supported are 1.34 and" in result.output
    assert _OLDEST == MINIMUM


RESOURCES = (
    ("gpu", "has no domain; want one such as nvidia.com/gpu"),
    ("kubernetes.io/gpu", "has kubernetes.io/, which belongs"),
    ("deviceclass.resource.kubernetes.io/gpu", "has kubernetes.io/, which belongs"),
    ("requests.nvidia.com/gpu", "begins with requests., which only quotas do"),
    ("/gpu", "has no DNS name before the slash"),
    ("Nvidia.com/gpu", "has no DNS name before the slash"),
    ("nvidia..com/gpu", "has no DNS name before the slash"),
    ("nvidia.com-/gpu", "has no DNS name before the slash"),
    (f"{'a' * 245}/gpu", "has no DNS name before the slash: at most 244"),
    ("nvidia.com/", "has no name after the slash"),
    ("nvidia.com/gpu/a", "has no name after the slash"),
    ("nvidia.com/gpu.", "has no name after the slash"),
    ("nvidia.com/gp u", "has no name after the slash"),
    ("nvidia.com/gpu\n", "has no name after the slash"),
    (f"nvidia.com/{'a' * 64}", "has no name after the slash: at most 63"),
)


@pytest.mark.parametrize(("name", "said"), RESOURCES)
def test_an_extended_resource_that_the_api_server_refuses_is_refused(aliquot, name, said):
    result = aliquot("render", "--classes", "--extended-resource-name", name)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "a/b", "x.example.com/Mig-1g.5gb_me", f"{'a' * 244}/{'b' * 63}"]
)
def test_any_other_extended_resource_is_taken(aliquot, name):
    result = aliquot("render", "--classes", "--extended-resource-name", name)
    assert result.exit_code == 0


def test_a_version_is_one_of_kubernetes_1(aliquot):
    for version in ("2.0", "1.36.3-gke", "latest"):
        result = aliquot("render", "l4", "--kubernetes", version)
        assert result.exit_code == 2
        assert "want a version such as 1.35 or 1.36.3" in result.output
