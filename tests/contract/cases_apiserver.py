"""What an API server does, as far as this project relies on it.

``class TestX(ApiServerCases)`` with a fixture ``client`` (a ``KubeClient`` with all rights) runs
the cases; ``tests/kube`` does so against the embedded server, the e2e suite against a real
kube-apiserver 1.36 or later. Objects get names of their own and are deleted afterwards.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable
from typing import Any

import pytest

from kubeletplugin.contract import Object
from kubeletplugin.kube import ApiError, KubeClient

API = "/apis/resource.k8s.io/v1"
SLICES = f"{API}/resourceslices"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


class World:
    """Creates objects with names of their own and deletes them at the end."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.tag = f"case-{uuid.uuid4().hex[:10]}"
        self.driver = f"{self.tag}.example.com"
        self._made: list[str] = []

    async def create(self, collection: str, body: Object) -> Object:
        stored = await self.client.create(collection, body)
        self._made.append(f"{collection}/{stored['metadata']['name']}")
        return stored

    async def slice(self, name: str = "s", **spec: Any) -> Object:
        return await self.create(SLICES, self.slice_body(name, **spec))

    def slice_body(self, name: str = "s", **spec: Any) -> Object:
        pool = {"name": self.tag, "generation": 1, "resourceSliceCount": 1}
        whole = {"driver": self.driver, "nodeName": self.tag, "pool": pool, **spec}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{self.tag}-{name}"},
            "spec": {key: value for key, value in whole.items() if value is not None},
        }

    def claim_body(self, name: str = "c") -> Object:
        exactly = {"deviceClassName": "none.example.com"}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"{self.tag}-{name}", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }

    async def allocated(self, *devices: str) -> Object:
        claim = await self.create(CLAIMS, self.claim_body())
        claim["status"] = {"allocation": self.allocation(*(devices or ("gpu-0",)))}
        return await self.client.update(f"{CLAIMS}/{claim['metadata']['name']}/status", claim)

    def allocation(self, *devices: str) -> Object:
        results = [
            {"request": "gpu", "driver": self.driver, "pool": self.tag, "device": device}
            for device in devices
        ]
        return {"devices": {"results": results}}

    def device_status(self, claim: Object, *devices: str, reason: str = "Prepared") -> Object:
        """A server-side apply of ``status.devices``."""
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": reason,
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim["metadata"]["name"], "namespace": "default"},
            "status": {
                "devices": [
                    {
                        "driver": self.driver,
                        "pool": self.tag,
                        "device": device,
                        "conditions": [condition],
                    }
                    for device in devices
                ]
            },
        }

    def of_driver(self) -> list[tuple[str, str]]:
        return [("fieldSelector", f"spec.driver={self.driver}")]

    async def clean(self) -> None:
        for path in self._made:
            with contextlib.suppress(ApiError):  # most cases have deleted something themselves
                await self.client.delete(path)


@pytest.fixture
async def world(client):
    made = World(client)
    yield made
    await made.clean()


async def refused(call: Awaitable[object], code: int, reason: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    assert (caught.value.code, caught.value.reason) == (code, reason)
    return caught.value


async def follow(world: World, version: str, count: int, selector: str = "") -> list[Object]:
    """The first ``count`` events of the driver's ResourceSlices, without bookmarks."""
    terms = f"spec.driver={world.driver}" + (f",{selector}" if selector else "")
    query = [("resourceVersion", version), ("fieldSelector", terms), ("timeoutSeconds", "20")]
    events: list[Object] = []
    async for event in world.client.watch(SLICES, query):
        if event["type"] != "BOOKMARK":
            events.append(event)
        if len(events) == count:
            break
    return events


class ObjectCases:
    """Creating, reading, changing and deleting."""

    async def test_create_fills_in_the_metadata(self, world):
        stored = await world.slice()
        metadata = stored["metadata"]
        assert metadata["generation"] == 1
        assert metadata["uid"]
        assert int(metadata["resourceVersion"]) > 0
        assert metadata["creationTimestamp"].endswith("Z")
        read = await world.client.get(f"{SLICES}/{metadata['name']}")
        assert (read["metadata"]["uid"], read["spec"]) == (metadata["uid"], stored["spec"])

    async def test_generate_name_is_completed(self, world):
        body = world.slice_body()
        body["metadata"] = {"generateName": f"{world.tag}-"}
        stored = await world.create(SLICES, body)
        assert stored["metadata"]["name"].startswith(f"{world.tag}-")
        assert len(stored["metadata"]["name"]) == len(world.tag) + 6

    async def test_a_second_object_of_a_name_already_exists(self, world):
        await world.slice()
        error = await refused(
            world.client.create(SLICES, world.slice_body()), 409, "AlreadyExists"
        )
        assert error.details["name"] == f"{world.tag}-s"
        assert error.details["kind"] == "resourceslices"
        assert error.details["group"] == "resource.k8s.io"

    async def test_what_is_not_there_is_not_found(self, world):
        path = f"{SLICES}/{world.tag}-none"
        await refused(world.client.get(path), 404, "NotFound")
        await refused(world.client.delete(path), 404, "NotFound")
        await refused(world.client.update(path, world.slice_body("none")), 404, "NotFound")

    async def test_an_unknown_resource_is_not_found(self, world):
        await refused(world.client.get(f"{API}/nonsenses"), 404, "NotFound")

    async def test_a_resource_version_at_creation_is_refused(self, world):
        body = world.slice_body()
        body["metadata"]["resourceVersion"] = "1"
        await refused(world.client.create(SLICES, body), 500, "")

    async def test_a_name_that_is_not_the_urls_is_a_bad_request(self, world):
        stored = await world.slice()
        stored["metadata"]["name"] += "x"
        await refused(world.client.update(f"{SLICES}/{world.tag}-s", stored), 400, "BadRequest")

    async def test_an_update_from_an_old_version_conflicts(self, world):
        first = await world.slice()
        path = f"{SLICES}/{first['metadata']['name']}"
        changed = {**first, "spec": {**first["spec"], "devices": [{"name": "gpu-0"}]}}
        second = await world.client.update(path, changed)
        assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
        await refused(world.client.update(path, changed), 409, "Conflict")

    async def test_an_update_without_a_version_goes_through(self, world):
        await world.slice()
        body = world.slice_body(devices=[{"name": "gpu-0"}])
        stored = await world.client.update(f"{SLICES}/{world.tag}-s", body)
        assert stored["spec"]["devices"] == [{"name": "gpu-0"}]

    async def test_an_update_with_another_uid_conflicts(self, world):
        stored = await world.slice()
        stored["metadata"]["uid"] = str(uuid.uuid4())
        await refused(world.client.update(f"{SLICES}/{world.tag}-s", stored), 409, "Conflict")

    async def test_an_update_that_changes_nothing_keeps_the_version(self, world):
        first = await world.slice()
        second = await world.client.update(f"{SLICES}/{world.tag}-s", first)
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    async def test_only_a_change_of_the_spec_counts_as_a_generation(self, world):
        found = await world.slice()
        path = f"{SLICES}/{world.tag}-s"
        found["metadata"]["annotations"] = {"a": "b"}
        found = await world.client.update(path, found)
        assert found["metadata"]["generation"] == 1
        found["spec"]["devices"] = [{"name": "gpu-0"}]
        found = await world.client.update(path, found)
        assert found["metadata"]["generation"] == 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [("driver", "other.example.com"), ("nodeName", "other-node"), ("pool", "other-pool")],
    )
    async def test_identity_of_a_slice_is_immutable(self, world, field, value):
        found = await world.slice()
        if field == "pool":
            found["spec"]["pool"]["name"] = value
        else:
            found["spec"][field] = value
        error = await refused(
            world.client.update(f"{SLICES}/{world.tag}-s", found), 422, "Invalid"
        )
        assert field in error.message

    async def test_a_merge_patch_removes_what_is_null(self, world):
        await world.slice(devices=[{"name": "gpu-0"}])
        path = f"{SLICES}/{world.tag}-s"
        found = await world.client.merge_patch(
            path, {"metadata": {"annotations": {"a": "b", "c": "d"}}}
        )
        assert found["metadata"]["annotations"] == {"a": "b", "c": "d"}
        patch = {"metadata": {"annotations": {"a": None}}, "spec": {"devices": None}}
        found = await world.client.merge_patch(path, patch)
        assert found["metadata"]["annotations"] == {"c": "d"}
        assert not found["spec"].get("devices")

    async def test_a_merge_patch_with_an_old_version_conflicts(self, world):
        found = await world.slice()
        path = f"{SLICES}/{world.tag}-s"
        await world.client.merge_patch(path, {"metadata": {"annotations": {"a": "b"}}})
        version = found["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "annotations": {"a": "c"}}}
        await refused(world.client.merge_patch(path, patch), 409, "Conflict")

    async def test_a_delete_for_another_uid_or_version_conflicts(self, world):
        found = await world.slice()
        path = f"{SLICES}/{world.tag}-s"
        await refused(world.client.delete(path, uid=str(uuid.uuid4())), 409, "Conflict")
        await refused(world.client.delete(path, resource_version="1"), 409, "Conflict")
        metadata = found["metadata"]
        version = metadata["resourceVersion"]
        await world.client.delete(path, uid=metadata["uid"], resource_version=version)
        await refused(world.client.get(path), 404, "NotFound")

    async def test_a_finalizer_holds_what_is_deleted(self, world):
        body = world.claim_body()
        body["metadata"]["finalizers"] = ["example.com/hold"]
        stored = await world.create(CLAIMS, body)
        path = f"{CLAIMS}/{stored['metadata']['name']}"
        await world.client.delete(path)
        found = await world.client.get(path)
        assert found["metadata"]["deletionTimestamp"]
        await world.client.merge_patch(path, {"metadata": {"finalizers": None}})
        await refused(world.client.get(path), 404, "NotFound")

    async def test_a_dry_run_stores_nothing(self, world):
        dry = [("dryRun", "All")]
        body = world.slice_body(devices=[{"name": "gpu-0"}])
        answer = await world.client.create(SLICES, body, dry)
        assert answer["spec"]["devices"] == [{"name": "gpu-0"}]
        await refused(world.client.get(f"{SLICES}/{world.tag}-s"), 404, "NotFound")
        found = await world.slice()
        changed = {**found, "spec": body["spec"]}
        await world.client.update(f"{SLICES}/{world.tag}-s", changed, dry)
        await world.client.delete(f"{SLICES}/{world.tag}-s", dry)
        await world.client.delete(f"{SLICES}/{world.tag}-s", dry, uid=found["metadata"]["uid"])
        assert (await world.client.get(f"{SLICES}/{world.tag}-s"))["spec"] == found["spec"]

    async def test_a_dry_run_of_some_is_invalid(self, world):
        dry = [("dryRun", "Some")]
        await refused(world.client.create(SLICES, world.slice_body(), dry), 422, "Invalid")

    async def test_an_object_of_another_kind_is_a_bad_request(self, world):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": world.tag}}
        await refused(world.client.create(SLICES, body), 400, "BadRequest")

    async def test_a_refused_dry_run_is_invalid_too(self, world):
        body = world.slice_body(devices=[{"name": "gpu-0"}, {"name": "gpu-0"}])
        await refused(world.client.create(SLICES, body, [("dryRun", "All")]), 422, "Invalid")

    async def test_the_kubelet_deletes_the_collection_of_its_node(self, world):
        await world.slice("a")
        await world.slice("b")
        await world.slice("c", nodeName=f"{world.tag}-other")
        selector = f"spec.driver={world.driver},spec.nodeName={world.tag}"
        await world.client.delete(SLICES, [("fieldSelector", selector)])
        items, _ = await world.client.list_pages(SLICES, world.of_driver())
        assert [found["metadata"]["name"] for found in items] == [f"{world.tag}-c"]

    async def test_classes_templates_and_events_are_kept(self, world):
        device_class = {
            "metadata": {"name": world.driver},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{world.driver}'"}}]},
        }
        stored = await world.create(f"{API}/deviceclasses", device_class)
        assert stored["kind"] == "DeviceClass"
        assert stored["spec"] == device_class["spec"]
        template = {"metadata": {"name": world.tag}, "spec": {"spec": world.claim_body()["spec"]}}
        stored = await world.create(f"{API}/namespaces/default/resourceclaimtemplates", template)
        request = stored["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        assert request["allocationMode"] == "ExactCount"

    async def test_a_series_is_patched_into_an_event(self, world):
        event = {
            "metadata": {"name": f"{world.tag}.1", "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Normal",
            "reason": "Tested",
            "action": "Test",
            "note": "a note",
            "regarding": {"kind": "ResourceClaim", "name": "c", "namespace": "default"},
            "reportingController": world.driver,
            "reportingInstance": "node-1",
        }
        await world.create(EVENTS, event)
        series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}
        found = await world.client.merge_patch(f"{EVENTS}/{world.tag}.1", {"series": series})
        assert found["series"]["count"] == 2
        assert found["note"] == "a note"

    async def test_the_version_is_told(self, world):
        version = await world.client.version()
        assert version["major"] == "1"
        assert version["gitVersion"].startswith(f"v1.{version['minor'].rstrip('+')}.")


class ListCases:
    """Lists and watches."""

    @pytest.mark.parametrize("field", ["spec.driver", "spec.nodeName", "metadata.name"])
    async def test_field_selectors_choose(self, world, field):
        other = f"{world.tag}-other.example.com"
        await world.slice("a")
        await world.slice("b", driver=other, nodeName=f"{world.tag}-other")
        wanted = {
            "spec.driver": world.driver,
            "spec.nodeName": world.tag,
            "metadata.name": f"{world.tag}-a",
        }[field]
        items, _ = await world.client.list_pages(SLICES, [("fieldSelector", f"{field}={wanted}")])
        assert [found["metadata"]["name"] for found in items] == [f"{world.tag}-a"]

    async def test_terms_of_a_selector_are_anded_and_may_be_negated(self, world):
        await world.slice("a")
        await world.slice("b", nodeName=f"{world.tag}-other")
        selector = f"spec.driver={world.driver},spec.nodeName!={world.tag}"
        items, _ = await world.client.list_pages(SLICES, [("fieldSelector", selector)])
        assert [found["metadata"]["name"] for found in items] == [f"{world.tag}-b"]

    async def test_an_unknown_field_selector_is_a_bad_request(self, world):
        query = [("fieldSelector", "spec.nonsense=x")]
        await refused(world.client.list_pages(SLICES, query), 400, "BadRequest")

    async def test_pages_add_up_and_come_in_the_order_of_names(self, world):
        for name in ("c", "a", "b", "e", "d"):
            await world.slice(name)
        items, version = await world.client.list_pages(SLICES, world.of_driver(), limit=2)
        names = [found["metadata"]["name"] for found in items]
        assert names == [f"{world.tag}-{name}" for name in "abcde"]
        assert int(version) >= max(int(found["metadata"]["resourceVersion"]) for found in items)

    async def test_a_list_names_its_kind_and_its_items_do_not(self, world):
        await world.slice()
        found = await world.client.get(SLICES, world.of_driver())
        assert (found["kind"], found["apiVersion"]) == ("ResourceSliceList", "resource.k8s.io/v1")

    async def test_a_watch_tells_what_happens_after_the_list(self, world):
        _, version = await world.client.list_pages(SLICES, world.of_driver())
        watching = asyncio.create_task(follow(world, version, 3))
        made = await world.slice()
        path = f"{SLICES}/{world.tag}-s"
        made["spec"]["devices"] = [{"name": "gpu-0"}]
        changed = await world.client.update(path, made)
        await world.client.delete(path)
        events = await watching
        assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert versions == sorted(set(versions))
        assert versions[1] == int(changed["metadata"]["resourceVersion"])

    async def test_a_watch_can_be_resumed_without_a_gap(self, world):
        first = await world.slice("a")
        await world.slice("b")
        await world.client.delete(f"{SLICES}/{world.tag}-a")
        events = await follow(world, first["metadata"]["resourceVersion"], 2)
        assert [event["type"] for event in events] == ["ADDED", "DELETED"]

    async def test_a_watch_without_a_version_begins_with_what_there_is(self, world):
        await world.slice("a")
        await world.slice("b")
        events = await follow(world, "0", 2)
        assert [event["type"] for event in events] == ["ADDED", "ADDED"]

    async def test_a_watch_hears_of_its_selection_only(self, world):
        _, version = await world.client.list_pages(SLICES, world.of_driver())
        await world.slice("a", nodeName=f"{world.tag}-other")
        await world.slice("b")
        events = await follow(world, version, 1, f"spec.nodeName={world.tag}")
        assert events[0]["object"]["metadata"]["name"] == f"{world.tag}-b"

    async def test_a_watch_ends_in_order_after_its_time(self, world):
        _, version = await world.client.list_pages(SLICES, world.of_driver())
        query = [*world.of_driver(), ("resourceVersion", version), ("timeoutSeconds", "1")]
        events = [event async for event in world.client.watch(SLICES, query)]
        assert all(event["type"] == "BOOKMARK" for event in events)

    async def test_a_watch_from_a_version_that_is_none_is_refused(self, world):
        query = [("resourceVersion", "abc"), ("timeoutSeconds", "1")]
        with pytest.raises(ApiError) as caught:
            async for _ in world.client.watch(SLICES, query):
                pass
        assert caught.value.code == 500

    async def test_a_continue_token_that_is_none_is_a_bad_request(self, world):
        await refused(world.client.get(SLICES, [("continue", "abc")]), 400, "BadRequest")

    async def test_a_claim_is_watched_in_all_namespaces(self, world):
        _, version = await world.client.list_pages(f"{API}/resourceclaims")
        stored = await world.create(CLAIMS, world.claim_body())
        query = [("resourceVersion", version), ("timeoutSeconds", "20")]
        async for event in world.client.watch(f"{API}/resourceclaims", query):
            if event["object"]["metadata"].get("uid") == stored["metadata"]["uid"]:
                assert event["type"] == "ADDED"
                return
        pytest.fail("the claim was never seen")


def _range_policy(value: str, **bounds: str) -> Object:
    policy = {"default": bounds.get("min", "1"), "validRange": bounds}
    return {"name": "gpu-0", "allowMultipleAllocations": True} | {
        "capacity": {"memory": {"value": value, "requestPolicy": policy}}
    }


INVALID_DEVICES: dict[str, list[Object]] = {
    "two of a name": [{"name": "gpu-0"}, {"name": "gpu-0"}],
    "a name that is no label": [{"name": "GPU_0"}],
    "129 devices": [{"name": f"gpu-{n}"} for n in range(129)],
    "65 devices with a taint": [
        {"name": f"gpu-{n}", "taints": [{"key": "a.b/c", "effect": "NoSchedule"}]}
        for n in range(65)
    ],
    "33 attributes": [{"name": "gpu-0", "attributes": {f"a{n}": {"int": n} for n in range(33)}}],
    "a version that is not semantic": [
        {"name": "gpu-0", "attributes": {"driverVersion": {"version": "580.82.07"}}}
    ],
    "65 bytes of text": [{"name": "gpu-0", "attributes": {"text": {"string": "x" * 65}}}],
    "an attribute with a dash": [{"name": "gpu-0", "attributes": {"pci-bus": {"string": "x"}}}],
    "an attribute without a value": [{"name": "gpu-0", "attributes": {"empty": {}}}],
    "an attribute with two values": [
        {"name": "gpu-0", "attributes": {"both": {"int": 1, "bool": True}}}
    ],
    "an unknown taint effect": [{"name": "gpu-0", "taints": [{"key": "a", "effect": "Never"}]}],
    "a taint with a bad key": [{"name": "gpu-0", "taints": [{"key": "a b", "effect": "None"}]}],
    "17 taints": [
        {"name": "gpu-0", "taints": [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(17)]}
    ],
    "a policy on a device for one": [
        {
            "name": "gpu-0",
            "capacity": {"memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi"}}},
        }
    ],
    "min and step beyond the value": [_range_policy("1", min="1", step="1")],
    "a default outside of the range": [
        {
            "name": "gpu-0",
            "allowMultipleAllocations": True,
            "capacity": {
                "memory": {
                    "value": "8",
                    "requestPolicy": {"default": "1", "validRange": {"min": "2"}},
                }
            },
        }
    ],
    "values that do not ascend": [
        {
            "name": "gpu-0",
            "allowMultipleAllocations": True,
            "capacity": {
                "memory": {
                    "value": "8",
                    "requestPolicy": {"default": "2", "validValues": ["2", "1"]},
                }
            },
        }
    ],
    "three counter sets consumed": [
        {
            "name": "gpu-0",
            "consumesCounters": [
                {"counterSet": f"set-{n}", "counters": {"a": {"value": "1"}}} for n in range(3)
            ],
        }
    ],
}

COUNTER_SET = {"name": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}}
INVALID_SPECS: dict[str, Object] = {
    "devices and counters": {"devices": [{"name": "gpu-0"}], "sharedCounters": [COUNTER_SET]},
    "an empty counter set": {"sharedCounters": [{"name": "gpu-0", "counters": {}}]},
    "two counter sets of a name": {"sharedCounters": [COUNTER_SET, COUNTER_SET]},
    "nine counter sets": {
        "sharedCounters": [{**COUNTER_SET, "name": f"gpu-{n}"} for n in range(9)]
    },
    "33 counters": {
        "sharedCounters": [
            {"name": "gpu-0", "counters": {f"c{n}": {"value": "1"} for n in range(33)}}
        ]
    },
    "a counter in camel case": {
        "sharedCounters": [{"name": "gpu-0", "counters": {"memorySlice": {"value": "1"}}}]
    },
    "no slices in the pool": {
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 0},
    },
    "a generation below zero": {
        "pool": {"name": "p", "generation": -1, "resourceSliceCount": 1},
    },
    "a pool name with a space": {
        "pool": {"name": "a b", "generation": 1, "resourceSliceCount": 1},
    },
    "no node": {"nodeName": None},
    "two kinds of node": {"allNodes": True},
    "a driver name in two words": {"driver": "a driver"},
}


class SliceCases:
    """What a ResourceSlice may hold, and what is done to it on the way in."""

    @pytest.mark.parametrize("what", INVALID_DEVICES)
    async def test_devices_are_checked(self, world, what):
        body = world.slice_body(devices=INVALID_DEVICES[what])
        error = await refused(world.client.create(SLICES, body), 422, "Invalid")
        assert all(cause["field"].startswith("spec.") for cause in error.details["causes"])

    @pytest.mark.parametrize("what", INVALID_SPECS)
    async def test_the_spec_is_checked(self, world, what):
        body = world.slice_body(**INVALID_SPECS[what])
        error = await refused(world.client.create(SLICES, body), 422, "Invalid")
        assert error.details["kind"] == "ResourceSlice"

    async def test_a_name_must_be_a_dns_name(self, world):
        body = world.slice_body()
        body["metadata"]["name"] = f"{world.tag}_x"
        await refused(world.client.create(SLICES, body), 422, "Invalid")

    async def test_the_limits_themselves_are_accepted(self, world):
        await world.slice("many", devices=[{"name": f"gpu-{n}"} for n in range(128)])
        attributes = {f"a{n}": {"int": n} for n in range(32)}
        await world.slice("full", devices=[{"name": "gpu-0", "attributes": attributes}])
        await world.slice("empty")

    async def test_counters_taints_and_sharing_are_kept(self, world):
        device = {
            "name": "gpu-0",
            "allowMultipleAllocations": True,
            "attributes": {
                "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
                "driverVersion": {"version": "580.82.7"},
                "wholeCard": {"bool": False},
                "index": {"int": 0},
            },
            "capacity": {
                "memory": {
                    "value": "79Gi",
                    "requestPolicy": {
                        "default": "79Gi",
                        "validRange": {"min": "1Gi", "step": "1Gi"},
                    },
                },
                "shares": {
                    "value": "48",
                    "requestPolicy": {"default": "1", "validValues": ["1"]},
                },
            },
            "consumesCounters": [{"counterSet": "gpu-0", "counters": COUNTER_SET["counters"]}],
        }
        stored = await world.slice("devices", devices=[device])
        assert stored["spec"]["devices"] == [device]
        stored = await world.slice("counters", sharedCounters=[COUNTER_SET])
        assert stored["spec"]["sharedCounters"] == [COUNTER_SET]

    async def test_a_taint_gets_the_time_it_was_added(self, world):
        taint = {"key": "gpu.example.com/lost", "effect": "NoSchedule"}
        stored = await world.slice(devices=[{"name": "gpu-0", "taints": [taint]}])
        added = stored["spec"]["devices"][0]["taints"][0]["timeAdded"]
        assert added.endswith("Z")
        again = await world.client.update(f"{SLICES}/{world.tag}-s", stored)
        assert again["spec"]["devices"][0]["taints"][0]["timeAdded"] == added

    async def test_quantities_come_back_in_their_shortest_form(self, world):
        values = ["1024Mi", "81037Mi", "0.5", "1000", "100", "1500", "1e3", "1.5Gi", "0", "512Ki"]
        capacity = {f"c{n}": {"value": value} for n, value in enumerate(values)}
        stored = await world.slice(devices=[{"name": "gpu-0", "capacity": capacity}])
        found = stored["spec"]["devices"][0]["capacity"]
        assert [found[f"c{n}"]["value"] for n in range(len(values))] == [
            "1Gi", "81037Mi", "500m", "1k", "100", "1500", "1e3", "1536Mi", "0", "512Ki",
        ]  # fmt: skip

    async def test_empty_fields_are_left_out(self, world):
        device = {"name": "gpu-0", "attributes": {}, "capacity": {}, "taints": []}
        stored = await world.slice(devices=[device])
        assert stored["spec"]["devices"] == [{"name": "gpu-0"}]


class ClaimCases:
    """Claims and their status."""

    async def test_requests_get_their_defaults(self, world):
        stored = await world.create(CLAIMS, world.claim_body())
        request = stored["spec"]["devices"]["requests"][0]["exactly"]
        assert (request["allocationMode"], request["count"]) == ("ExactCount", 1)

    async def test_a_status_at_creation_is_not_kept(self, world):
        body = world.claim_body()
        body["status"] = {"allocation": world.allocation("gpu-0")}
        stored = await world.create(CLAIMS, body)
        assert not stored.get("status")

    async def test_the_spec_is_immutable(self, world):
        stored = await world.create(CLAIMS, world.claim_body())
        stored["spec"]["devices"]["requests"][0]["name"] = "other"
        path = f"{CLAIMS}/{stored['metadata']['name']}"
        await refused(world.client.update(path, stored), 422, "Invalid")

    async def test_two_requests_of_a_name_are_refused(self, world):
        body = world.claim_body()
        body["spec"]["devices"]["requests"] *= 2
        await refused(world.client.create(CLAIMS, body), 422, "Invalid")

    async def test_the_status_is_written_by_its_subresource_alone(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}"
        claim["status"] = {}
        claim["metadata"]["annotations"] = {"a": "b"}
        claim = await world.client.update(path, claim)
        assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
        claim["spec"]["devices"]["requests"][0]["name"] = "other"
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
        claim = await world.client.update(f"{path}/status", claim)
        assert claim["spec"]["devices"]["requests"][0]["name"] == "gpu"
        assert claim["status"]["reservedFor"][0]["name"] == "p"

    async def test_an_allocation_is_set_or_unset_only(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        other = {**claim, "status": {"allocation": world.allocation("gpu-1")}}
        await refused(world.client.update(path, other), 422, "Invalid")
        claim = await world.client.update(path, {**claim, "status": {}})
        assert not (claim.get("status") or {}).get("allocation")

    async def test_a_reservation_needs_an_allocation(self, world):
        claim = await world.create(CLAIMS, world.claim_body())
        claim["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        await refused(world.client.update(path, claim), 422, "Invalid")

    async def test_device_status_is_applied(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        found = await world.client.apply(
            path, world.device_status(claim, "gpu-0"), field_manager=world.driver
        )
        (entry,) = found["status"]["devices"]
        assert (entry["device"], entry["conditions"][0]["reason"]) == ("gpu-0", "Prepared")
        assert found["status"]["allocation"] == claim["status"]["allocation"]
        assert found["spec"] == claim["spec"]

    async def test_the_same_applied_twice_changes_nothing(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        body = world.device_status(claim, "gpu-0")
        first = await world.client.apply(path, body, field_manager=world.driver)
        second = await world.client.apply(path, body, field_manager=world.driver)
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]

    async def test_what_a_manager_no_longer_applies_goes(self, world):
        claim = await world.allocated("gpu-0", "gpu-1")
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        body = world.device_status(claim, "gpu-0", "gpu-1")
        await world.client.apply(path, body, field_manager=world.driver)
        body = world.device_status(claim, "gpu-1")
        found = await world.client.apply(path, body, field_manager=world.driver)
        assert [entry["device"] for entry in found["status"]["devices"]] == ["gpu-1"]

    async def test_managers_add_to_each_other(self, world):
        claim = await world.allocated("gpu-0", "gpu-1")
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        await world.client.apply(
            path, world.device_status(claim, "gpu-0"), field_manager=f"{world.driver}-a"
        )
        found = await world.client.apply(
            path, world.device_status(claim, "gpu-1"), field_manager=f"{world.driver}-b"
        )
        devices = sorted(entry["device"] for entry in found["status"]["devices"])
        assert devices == ["gpu-0", "gpu-1"]

    async def test_managers_that_disagree_conflict_unless_forced(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        mine = world.device_status(claim, "gpu-0", reason="Mine")
        yours = world.device_status(claim, "gpu-0", reason="Yours")
        await world.client.apply(path, mine, field_manager="first")
        await refused(world.client.apply(path, yours, field_manager="second"), 409, "Conflict")
        found = await world.client.apply(path, yours, field_manager="second", force=True)
        assert found["status"]["devices"][0]["conditions"][0]["reason"] == "Yours"

    async def test_status_of_a_device_that_is_not_allocated_is_refused(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        body = world.device_status(claim, "gpu-7")
        await refused(world.client.apply(path, body, field_manager=world.driver), 422, "Invalid")

    async def test_device_status_goes_with_the_allocation(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        body = world.device_status(claim, "gpu-0")
        claim = await world.client.apply(path, body, field_manager=world.driver)
        del claim["status"]["allocation"]
        claim = await world.client.update(path, claim)
        assert not (claim.get("status") or {}).get("devices")

    async def test_an_apply_needs_a_manager(self, world):
        claim = await world.allocated()
        path = f"{CLAIMS}/{claim['metadata']['name']}/status"
        body = world.device_status(claim, "gpu-0")
        await refused(world.client.apply(path, body, field_manager=""), 422, "Invalid")

    async def test_a_status_cannot_be_applied_to_nothing(self, world):
        claim = {"metadata": {"name": f"{world.tag}-none"}}
        path = f"{CLAIMS}/{world.tag}-none/status"
        body = world.device_status(claim, "gpu-0")
        await refused(world.client.apply(path, body, field_manager=world.driver), 404, "NotFound")


class ApiServerCases(ObjectCases, ListCases, SliceCases, ClaimCases):
    """All of it."""
