import pytest

from bench.claims import LABEL, Offer, allocated, claim, holder, named, offers

POD = {"metadata": {"name": "bench-r", "uid": "pod-uid"}}


def resource_slice(*devices, generation=1, driver="d", node="n"):
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)},
    }


def test_offers_are_of_the_driver_and_node_asked_for():
    slices = [
        resource_slice({"name": "a"}),
        resource_slice({"name": "b"}, driver="other"),
        resource_slice({"name": "c"}, node="elsewhere"),
    ]
    assert [each.device for each in offers(slices, "d", "n")] == ["a"]
    assert [each.pool for each in offers(slices, "d")] == ["n", "elsewhere"]


def test_resource_slices_of_an_older_generation_offer_nothing():
    slices = [resource_slice({"name": "old"}), resource_slice({"name": "new"}, generation=2)]
    assert [each.device for each in offers(slices, "d")] == ["new"]


def test_a_whole_device_consumes_nothing_and_a_shared_one_its_defaults():
    capacity = {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "10Gi"}},
        "cores": {"value": "100"},
    }
    whole = {"name": "w", "capacity": capacity}
    shared = {"name": "s", "allowMultipleAllocations": True, "capacity": capacity}
    found = offers([resource_slice(whole, shared)], "d")
    assert found[0] == Offer("n", "w")
    assert found[1] == Offer("n", "s", True, {"memory": "10Gi", "cores": "100"})


def test_named_devices_keep_the_order_asked_for_and_unknown_ones_are_told():
    found = [Offer("n", "a"), Offer("n", "b")]
    assert named(found, ["b", "a"]) == (found[1], found[0])
    with pytest.raises(ValueError, match=r"devices x are not published; there are: a, b"):
        named(found, ["a", "x"])


def test_an_allocated_claim_names_the_device_and_is_reserved_for_the_pod():
    body = allocated(claim("c", "default", "r"), Offer("n", "a"), "d", POD)
    assert body["metadata"]["labels"] == {LABEL: "r"}
    assert body["status"] == {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "d", "pool": "n", "device": "a"}]}
        },
        "reservedFor": [{"resource": "pods", "name": "bench-r", "uid": "pod-uid"}],
    }
    assert body["spec"]["devices"]["requests"][0]["name"] == "gpu"


def test_each_share_of_a_device_has_an_id_of_its_own_and_what_it_consumes():
    offer = Offer("n", "s", True, {"memory": "10Gi"})
    bodies = [allocated(claim("c", "default", "r"), offer, "d", POD) for _ in range(2)]
    results = [body["status"]["allocation"]["devices"]["results"][0] for body in bodies]
    assert [result["consumedCapacity"] for result in results] == [{"memory": "10Gi"}] * 2
    assert len({result["shareID"] for result in results}) == 2


def test_parameters_become_opaque_config_of_the_driver():
    body = allocated(claim("c", "ns", "r"), Offer("n", "a"), "d", POD, {"kind": "GpuConfig"})
    (entry,) = body["status"]["allocation"]["devices"]["config"]
    assert entry["source"] == "FromClaim"
    assert entry["opaque"] == {"driver": "d", "parameters": {"kind": "GpuConfig"}}


def test_the_pod_that_holds_the_claims_is_never_scheduled():
    assert holder("p", "ns", "r")["spec"]["schedulerName"] == "nobody"
