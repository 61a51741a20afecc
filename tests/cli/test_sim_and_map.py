import asyncio
import json
from typing import Any

import click
import pytest

from cli.drawing import BAR, cards, draw
from driver.sim.setup import create
from kubeletplugin.testing.apiserver.__main__ import kubeconfig
from kubeletplugin.testing.apiserver.server import ApiServer

DRIVER = "gpu.aliquot.dev"


@pytest.fixture
def node(tmp_path):
    create(tmp_path / "sim", "h100-80gb", 2)
    return tmp_path / "sim"


@pytest.fixture
def change(aliquot, node):
    """Run ``aliquot sim …`` and return the state after it."""

    def run(*arguments: object) -> dict[str, Any]:
        result = aliquot("sim", "--root", node, *arguments)
        assert (result.exit_code, result.output) == (0, "")
        state: dict[str, Any] = json.loads(aliquot("sim", "--root", node, "show").output)
        return state

    return run


def test_a_card_is_lost_and_restored(change):
    assert change("lose", 1)["gpus"]["1"]["lost"] is True
    assert change("restore", 1)["gpus"] == {}  # only cards that differ from a fresh one


def test_faults_are_injected_until_cleared(change):
    (fault,) = change("fault", "nvmlDeviceGetUUID", 15, "--count", 2, "--card", 1)["faults"]
    assert (fault["code"], fault["count"], fault["gpu"]) == (15, 2, 1)
    assert change("fault", "nvmlDeviceGetUUID", 15)["faults"][1]["count"] is None
    assert change("clear")["faults"] == []


def test_events_actions_processes_and_reboots(change):
    (event,) = change("xid", 0, 79)["events"]
    assert 79 in event
    assert change("recovery-action", 0, 2)["gpus"]["0"]["recovery_action"] == 2
    (process,) = change("process", 0, 4242, 16)["gpus"]["0"]["processes"]
    assert 4242 in (process if isinstance(process, list) else process.values())
    after = change("reboot")
    assert after["boots"] == 2
    assert after["gpus"] == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lose", "2"], "cards 0 to 1, asked for 2"),
        (["xid", "9", "79"], "cards 0 to 1, asked for 9"),
        (["fault", "nvmlNope", "1"], "no NVML call 'nvmlNope'"),
        (["fault", "nvmlInit", "0"], "0 is not in the range"),
        (["recovery-action", "0", "9"], "9 is not in the range"),
        (["lose", "--", "-1"], "-1 is not in the range"),
    ],
)
def test_bad_input_is_refused_with_what_is_there(aliquot, node, arguments, said):
    result = aliquot("sim", "--root", node, *arguments)
    assert result.exit_code != 0
    assert said in result.output


def test_a_folder_without_simulated_hardware_is_named(aliquot, tmp_path):
    result = aliquot("sim", "--root", tmp_path / "none", "lose", 0)
    assert result.exit_code == 1
    assert f"{tmp_path}/none" in result.output


# The map ---------------------------------------------------------------------------------


def resource_slice(generation: int, *devices: dict[str, Any], node: str = "node-1"):
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": f"{node}-{generation}"}, "spec": spec}


def device(name: str, pci: str, **more: Any) -> dict[str, Any]:
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "resource.kubernetes.io/pciBusID": {"string": pci},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "nvlinkGroup": {"string": "nvswitch"},
    }
    capacity = {"memory": {"value": "80Gi"}}
    return {"name": name, "attributes": attributes, "capacity": capacity, **more}


def claim(name: str, *devices: str, pod: str = "", admin: bool = False):
    result: dict[str, Any] = {"driver": DRIVER, "pool": "node-1", "request": "r"}
    result |= {"adminAccess": True} if admin else {}
    results = [{**result, "device": each} for each in devices]
    reserved = [{"resource": "pods", "name": pod, "uid": "u"}] if pod else []
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return {"metadata": {"name": name, "namespace": "team"}, "status": status}


def test_each_card_has_a_bar_with_its_holder():
    slices = [
        resource_slice(
            1,
            device("gpu-b", "0000:3b:00.0"),
            device("gpu-a", "0000:1b:00.0"),
            device("gpu-c", "0000:5b:00.0", taints=[{"key": "x/health", "effect": "NoSchedule"}]),
        )
    ]
    found = cards(slices, [claim("mine", "gpu-b", pod="web"), claim("pending")], DRIVER)
    assert [card.device for card in found] == ["gpu-a", "gpu-b", "gpu-c"]
    head, _, free, held, tainted = draw(found)
    assert "node-1" in head
    assert "3 cards, 1 held, 2 free" in head
    assert "░" * BAR in free
    assert free.endswith("free")
    assert "█" * BAR in held
    assert held.endswith("team/mine (web)")
    assert "▒" * BAR in tainted
    assert "tainted: x/health:NoSchedule" in tainted


def cut(card: str, profile: str, start: int, size: int) -> dict[str, Any]:
    made = device(f"{card}-mig-{profile.replace('.', '-')}-{start}", "0000:1b:00.0")
    made["attributes"] |= {
        "type": {"string": "mig"},
        "profile": {"string": profile},
        "placementStart": {"int": start},
        "placementSize": {"int": size},
    }
    return made


def test_memory_slices_are_drawn_with_their_holders():
    small = [cut("gpu-a", "1g.10gb", n, 1) for n in range(7)]
    large = [cut("gpu-a", "3g.40gb", n, 4) for n in (0, 4)]
    slices = [resource_slice(1, device("gpu-a", "0000:1b:00.0"), *small, *large)]
    claims = [
        claim("one", "gpu-a-mig-1g-10gb-2", pod="web"),
        claim("two", "gpu-a-mig-3g-40gb-4"),
    ]
    found = cards(slices, claims, DRIVER)
    assert [(part.profile, part.start) for part in found[0].parts] == [
        ("1g.10gb", 2),
        ("3g.40gb", 4),
    ]
    head, _, line = draw(found)
    assert "1 card, 1 held, 0 free" in head
    assert "░" * 6 + "██▌" + "░" * 3 + "█" * 11 + "▌" in click.unstyle(line)
    assert line.endswith("1g.10gb [2] team/one (web); 3g.40gb [4-7] team/two")


def test_a_card_that_is_offered_in_partitions_only_is_drawn():
    (found,) = cards([resource_slice(1, cut("gpu-a", "1g.10gb", 0, 1))], [], DRIVER)
    assert (found.device, found.memory, found.held) == ("gpu-a", "", False)


def test_only_the_newest_generation_of_a_pool_counts():
    old, new = device("old", "0000:1b:00.0"), device("new", "0000:1b:00.0")
    slices = [resource_slice(1, old), resource_slice(2, new)]
    assert [card.device for card in cards(slices, [], DRIVER)] == ["new"]


def test_admin_access_is_marked_and_other_drivers_are_left_out():
    other = resource_slice(1, device("x", "0000:1b:00.0"))
    other["spec"]["driver"] = "gpu.example.com"
    slices = [resource_slice(1, device("gpu-a", "0000:1b:00.0")), other]
    (card,) = cards(slices, [claim("watcher", "gpu-a", admin=True)], DRIVER)
    assert card.holders == ("team/watcher [admin]",)


def test_nodes_are_drawn_one_after_the_other():
    slices = [
        resource_slice(1, device("gpu-a", "0000:1b:00.0"), node="node-2"),
        resource_slice(1, device("gpu-a", "0000:1b:00.0"), node="node-1"),
    ]
    heads = [line for line in draw(cards(slices, [], DRIVER)) if "1 card," in line]
    assert len(heads) == 2
    assert "node-1" in heads[0]
    assert "node-2" in heads[1]


async def test_the_map_of_a_cluster_comes_from_its_api_server(aliquot, tmp_path):
    async with ApiServer() as server:
        config = tmp_path / "kubeconfig"
        config.write_text(kubeconfig(server.url))
        empty = await asyncio.to_thread(aliquot, "map", "--kubeconfig", config)
        body = resource_slice(1, device("gpu-a", "0000:1b:00.0"))
        body |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        client = server.client()
        await client.create("/apis/resource.k8s.io/v1/resourceslices", body)
        drawn = await asyncio.to_thread(aliquot, "map", "--kubeconfig", config)
        other = await asyncio.to_thread(aliquot, "map", "--kubeconfig", config, "--node", "else")
    assert empty.exit_code == 1
    assert "has published no cards" in empty.output
    assert drawn.exit_code == 0
    assert "gpu-a" in drawn.output
    assert other.exit_code == 1
    assert "on node else" in other.output


def test_no_api_server_is_a_clear_error(aliquot, tmp_path):
    result = aliquot("map", "--kubeconfig", tmp_path / "none")
    assert result.exit_code == 1
    assert f"kubeconfig {tmp_path}/none: there is no such file" in result.output
