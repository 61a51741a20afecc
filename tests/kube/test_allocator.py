import pytest

from kubeletplugin.contract import Object
from kubeletplugin.testing import allocator_cel
from kubeletplugin.testing.allocator import AllocationError, allocate, release
from kubeletplugin.testing.allocator_cel import SelectorError, compile_selector

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
DRIVER = "gpu.example.com"
POD: Object = {"metadata": {"name": "pod-1", "uid": "pod-uid"}}
GPU = "device.attributes['gpu.example.com']"


def gpu(name: str, group: str = "a", **fields: object) -> Object:
    attributes = {
        "type": {"string": "gpu"},
        "nvlinkGroup": {"string": group},
        "driverVersion": {"version": "580.82.7"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci-{group}"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}} | (
        fields
    )


async def publish(client, name: str, *devices: Object, node: str = "node-1", **pool: int):
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1, **pool},
        "devices": list(devices),
    }
    await client.create(f"{API}/resourceslices", {"metadata": {"name": name}, "spec": spec})


@pytest.fixture
async def world(client):
    expression = f"device.driver == '{DRIVER}' && {GPU}.type == 'gpu'"
    spec = {
        "selectors": [{"cel": {"expression": expression}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": {"from": "class"}}}],
    }
    await client.create(f"{API}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": spec})
    return client


async def claim(client, *requests: Object, name: str = "c", **devices: object) -> None:
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [*requests], **devices}}}
    await client.create(CLAIMS, body)


def exactly(name: str = "gpu", **fields: object) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def chosen(found: Object) -> list[str]:
    return [result["device"] for result in found["status"]["allocation"]["devices"]["results"]]


async def test_the_first_device_by_slice_name_and_position_is_taken(world):
    await publish(world, "b", gpu("gpu-2"), resourceSliceCount=2)
    await publish(world, "a", gpu("gpu-1"), gpu("gpu-0"), resourceSliceCount=2)
    for name, device in (("c1", "gpu-1"), ("c2", "gpu-0"), ("c3", "gpu-2")):
        await claim(world, exactly(), name=name)
        assert chosen(await allocate(world, "default", name, POD)) == [device]
    await claim(world, exactly(), name="c4")
    with pytest.raises(AllocationError, match=r"claim default/c4: .* 3 taken"):
        await allocate(world, "default", "c4", POD)


async def test_an_allocation_says_where_for_whom_and_with_what_config(world):
    await publish(world, "a", gpu("gpu-0"))
    config = [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {"from": "claim"}}}]
    await claim(world, exactly(), config=config)
    found = await allocate(world, "default", "c", POD)
    allocation = found["status"]["allocation"]
    assert allocation["devices"]["results"] == [
        {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"}
    ]
    assert [
        (entry["source"], entry["opaque"]["parameters"]["from"])
        for entry in allocation["devices"]["config"]
    ] == [("FromClass", "class"), ("FromClaim", "claim")]
    term = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]
    assert term == {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    assert found["status"]["reservedFor"] == [
        {"resource": "pods", "name": "pod-1", "uid": "pod-uid"}
    ]


async def test_a_second_pod_shares_the_claim(world):
    await publish(world, "a", gpu("gpu-0"), gpu("gpu-1"))
    await claim(world, exactly())
    await allocate(world, "default", "c", POD)
    await allocate(world, "default", "c", POD)
    found = await allocate(world, "default", "c", {"metadata": {"name": "pod-2", "uid": "u2"}})
    assert [one["name"] for one in found["status"]["reservedFor"]] == ["pod-1", "pod-2"]
    assert chosen(found) == ["gpu-0"]


async def test_what_is_released_is_free_again(world):
    await publish(world, "a", gpu("gpu-0"))
    await claim(world, exactly())
    await allocate(world, "default", "c", POD)
    assert not (await release(world, "default", "c")).get("status")
    await claim(world, exactly(), name="d")
    assert chosen(await allocate(world, "default", "d", POD)) == ["gpu-0"]


async def test_count_takes_different_devices(world):
    await publish(world, "a", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2"))
    await claim(world, exactly(count=2))
    assert chosen(await allocate(world, "default", "c", POD)) == ["gpu-0", "gpu-1"]


async def test_devices_that_must_match_are_searched_for(world):
    await publish(world, "a", gpu("gpu-0", "a"), gpu("gpu-1", "b"), gpu("gpu-2", "b"))
    match = [{"matchAttribute": f"{DRIVER}/nvlinkGroup"}]
    await claim(world, exactly(count=2), constraints=match)
    assert chosen(await allocate(world, "default", "c", POD)) == ["gpu-1", "gpu-2"]


async def test_a_constraint_holds_for_its_requests_alone(world):
    await publish(world, "a", gpu("gpu-0", "a"), gpu("gpu-1", "b"), gpu("gpu-2", "b"))
    match = [{"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["two", "three"]}]
    requests = [exactly("one"), exactly("two"), exactly("three")]
    await claim(world, *requests, constraints=match)
    assert chosen(await allocate(world, "default", "c", POD)) == ["gpu-0", "gpu-1", "gpu-2"]


async def test_a_device_without_the_attribute_matches_nothing(world):
    await publish(world, "a", gpu("gpu-0"))
    await claim(world, exactly(), constraints=[{"matchAttribute": f"{DRIVER}/missing"}])
    with pytest.raises(AllocationError):
        await allocate(world, "default", "c", POD)


async def test_all_devices_come_from_one_node(world):
    await publish(world, "a", gpu("gpu-0"))
    await publish(world, "b", gpu("gpu-1"), gpu("gpu-2"), node="node-2")
    await claim(world, exactly(count=2))
    assert chosen(await allocate(world, "default", "c", POD)) == ["gpu-1", "gpu-2"]
    await claim(world, exactly(), name="d")
    with pytest.raises(AllocationError, match="on 1 nodes"):
        await allocate(world, "default", "d", POD, node="node-2")


async def test_first_available_takes_what_there_is(world):
    await publish(world, "a", gpu("gpu-0"))
    parts = [
        {
            "name": "big",
            "deviceClassName": "gpu",
            "count": 2,
        },
        {"name": "small", "deviceClassName": "gpu"},
    ]
    await claim(world, {"name": "gpu", "firstAvailable": parts})
    found = await allocate(world, "default", "c", POD)
    (result,) = found["status"]["allocation"]["devices"]["results"]
    assert (result["request"], result["device"]) == ("gpu/small", "gpu-0")
    config = found["status"]["allocation"]["devices"]["config"]
    assert [entry["requests"] for entry in config] == [["gpu/small"]]


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "a/b", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "a/b", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "a/b", "value": "x"}, True),
        ({"key": "a/b", "operator": "Equal", "value": "y"}, False),
    ],
)
async def test_taints_need_tolerations(world, toleration, fits):
    taints = [{"key": "a/b", "value": "x", "effect": "NoSchedule"}]
    await publish(world, "a", gpu("gpu-0", taints=taints))
    await claim(world, exactly(tolerations=[toleration] if toleration else []))
    if fits:
        assert chosen(await allocate(world, "default", "c", POD)) == ["gpu-0"]
    else:
        with pytest.raises(AllocationError):
            await allocate(world, "default", "c", POD)


async def test_a_taint_without_effect_is_only_told(world):
    await publish(world, "a", gpu("gpu-0", taints=[{"key": "a/b", "effect": "None"}]))
    await claim(world, exactly())
    assert chosen(await allocate(world, "default", "c", POD)) == ["gpu-0"]


async def test_admin_access_takes_what_others_have(world):
    await publish(world, "a", gpu("gpu-0"))
    await claim(world, exactly(), name="user")
    await allocate(world, "default", "user", POD)
    await claim(world, exactly(adminAccess=True), name="admin")
    found = await allocate(world, "default", "admin", POD)
    assert found["status"]["allocation"]["devices"]["results"][0]["adminAccess"] is True


async def test_incomplete_pools_and_old_generations_are_passed_over(world):
    await publish(world, "a", gpu("old"), generation=1)
    await publish(world, "b", gpu("new"), generation=2)
    await publish(world, "c", gpu("half"), node="node-2", resourceSliceCount=2)
    await claim(world, exactly())
    assert chosen(await allocate(world, "default", "c", POD)) == ["new"]
    await claim(world, exactly(), name="d")
    with pytest.raises(AllocationError, match="1 devices on 1 nodes"):
        await allocate(world, "default", "d", POD)


@pytest.mark.parametrize(
    ("request_", "constraints", "text"),
    [
        (exactly(allocationMode="All"), [], "does not know allocationMode All"),
        (
            {"name": "gpu", "exactly": {"deviceClassName": "x"}},
            [],
            "request gpu: there is no DeviceClass 'x'",
        ),
        (exactly(), [{"distinctAttribute": "a/b"}], "knows matchAttribute only"),
    ],
)
async def test_what_it_does_not_know_is_said(world, request_, constraints, text):
    await publish(world, "a", gpu("gpu-0"))
    await claim(world, request_, constraints=constraints)
    with pytest.raises(AllocationError, match=text):
        await allocate(world, "default", "c", POD)


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        (f"device.driver == '{DRIVER}'", True),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('81Gi')) >= 0", False),
        (f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('79Gi'))", True),
        (f"{GPU}.driverVersion.isLessThan(semver('580.100.0'))", True),
        ("isQuantity('1Gi') && !isQuantity('x')", True),
        ("quantity('50k').asInteger() == 50000", True),
        ("!device.allowMultipleAllocations", True),
        (f"{GPU}.?foo.orValue('d') == 'd'", True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci-a'", True),
        ("['a', 'b'].includes('b')", True),
    ],
)
def test_cel_with_what_kubernetes_adds(expression, fits):
    assert compile_selector(expression)(DRIVER, gpu("gpu-0")) is fits


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("device.driver ==", "CEL expression"),
        (f"{GPU}.missing == 'x'", "on device gpu-0"),
        ("1 + 1", "on device gpu-0"),
    ],
)
def test_expressions_that_fail_say_so(expression, text):
    with pytest.raises(SelectorError, match=text):
        compile_selector(expression)(DRIVER, gpu("gpu-0"))


@pytest.fixture
def no_engine(monkeypatch):
    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(allocator_cel, "_engine", missing)
    compile_selector.cache_clear()
    yield
    compile_selector.cache_clear()


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        (f"device.driver == '{DRIVER}' && {GPU}.type == 'gpu'", True),
        (f'{GPU}.type == "mig"', False),
        (f"{GPU}.index == 0", True),
        (f"{GPU}.wholeCard == true", True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci-a'", True),
        (f"{GPU}.missing == 'x'", False),
    ],
)
def test_without_the_engine_comparisons_still_work(no_engine, expression, fits):
    device = gpu("gpu-0")
    device["attributes"] |= {"index": {"int": 0}, "wholeCard": {"bool": True}}
    assert compile_selector(expression)(DRIVER, device) is fits


@pytest.mark.parametrize(
    "expression", ["device.driver.startsWith('gpu')", f"{GPU}.type == other", "true"]
)
def test_without_the_engine_the_rest_says_what_to_install(no_engine, expression):
    with pytest.raises(SelectorError, match="install cel-expr-python"):
        compile_selector(expression)
