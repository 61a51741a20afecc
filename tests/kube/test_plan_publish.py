"""The table of the Go controller (``dra/resourceslice``), with fixed names instead of indexes."""

import copy
from dataclasses import replace

import pytest

from kubeletplugin.contract import DesiredPool, DesiredSlice, Object
from kubeletplugin.plan_publish import Identity, PublishPlan, plan_publish, slice_name
from kubeletplugin.publish_checks import PublishError

ME = Identity("gpu.example.com", "node-1", "node-uid")
TIME = "2026-01-01T00:00:00Z"


def device(name: str, **fields: object) -> Object:
    return {"name": name, **fields}


def part(key: str, *devices: str | Object) -> DesiredSlice:
    return DesiredSlice(
        key, tuple(device(one) if isinstance(one, str) else one for one in devices)
    )


def pool(*slices: DesiredSlice, name: str = "node-1") -> DesiredPool:
    return DesiredPool(name, slices)


class Cluster:
    """Carries out plans, as the API server would."""

    def __init__(self, *stored: Object) -> None:
        self.stored = {found["metadata"]["name"]: found for found in stored}
        self.version = 100

    def carry_out(self, plan: PublishPlan) -> None:
        for found in plan.delete:
            del self.stored[found["metadata"]["name"]]
        for found in (*plan.update, *plan.create):
            self.version += 1
            whole = copy.deepcopy(found)
            name = whole["metadata"]["name"]
            whole["metadata"].setdefault("uid", f"uid-{name}")
            whole["metadata"]["resourceVersion"] = str(self.version)
            self.stored[name] = whole

    def publish(self, desired: DesiredPool, identity: Identity = ME) -> PublishPlan:
        plan = plan_publish(desired, [*self.stored.values()], identity)
        self.carry_out(plan)
        return plan

    def pools(self) -> list[Object]:
        return [self.stored[name]["spec"]["pool"] for name in sorted(self.stored)]


def names(found: tuple[Object, ...]) -> list[str]:
    return [one["metadata"]["name"].removeprefix("node-1-gpu.example.com-") for one in found]


def test_the_first_publication_creates_everything_as_generation_1():
    cluster = Cluster()
    plan = cluster.publish(pool(part("00-cards", "gpu-0"), part("01-mig", "mig-0")))
    assert names(plan.create) == ["00-cards", "01-mig"]
    assert (plan.delete, plan.update, plan.generation) == ((), (), 1)
    assert cluster.pools() == [
        {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
        {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
    ]


def test_a_created_slice_belongs_to_driver_and_node():
    plan = plan_publish(pool(part("cards", "gpu-0")), [], ME)
    assert plan.create == (
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": "node-1-gpu.example.com-cards",
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": "node-1",
                        "uid": "node-uid",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": "node-1",
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        },
    )


def test_creation_is_in_the_order_of_names_whatever_the_order_given():
    plan = plan_publish(pool(part("b", "two"), part("a", "one")), [], ME)
    assert names(plan.create) == ["a", "b"]


def test_a_pool_without_devices_is_one_empty_slice():
    cluster = Cluster()
    plan = cluster.publish(pool())
    (created,) = plan.create
    assert "devices" not in created["spec"]
    assert created["spec"]["pool"]["resourceSliceCount"] == 1
    assert not cluster.publish(pool())


def test_what_is_there_already_is_adopted_without_a_write():
    desired = pool(part("00-cards", "gpu-0", "gpu-1"), part("01-mig", "mig-0"))
    cluster = Cluster()
    cluster.publish(desired)
    plan = cluster.publish(desired)
    assert not plan
    assert plan.generation == 1


def test_one_changed_slice_keeps_the_generation():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one"), part("b", "two")))
    plan = cluster.publish(pool(part("a", "one"), part("b", "three")))
    assert (names(plan.update), plan.generation) == (["b"], 1)
    assert plan.update[0]["metadata"]["resourceVersion"] == "102"


def test_two_changed_slices_make_a_new_generation_of_all():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one"), part("b", "two"), part("c", "three")))
    plan = cluster.publish(pool(part("a", "one"), part("b", "2"), part("c", "3")))
    assert (names(plan.update), plan.generation) == (["a", "b", "c"], 2)
    assert {one["generation"] for one in cluster.pools()} == {2}


def test_a_new_slice_makes_a_new_generation_of_all():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one")))
    plan = cluster.publish(pool(part("a", "one"), part("b", "two")))
    assert (names(plan.update), names(plan.create), plan.generation) == (["a"], ["b"], 2)
    assert [one["resourceSliceCount"] for one in cluster.pools()] == [2, 2]


def test_a_slice_that_goes_from_three_makes_a_new_generation():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one"), part("b", "two"), part("c", "three")))
    plan = cluster.publish(pool(part("a", "one"), part("c", "three")))
    assert (names(plan.delete), names(plan.update)) == (["b"], ["a", "c"])
    assert plan.generation == 2


def test_a_slice_that_goes_from_two_leaves_one_atomic_update():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one"), part("b", "two")))
    plan = cluster.publish(pool(part("a", "one")))
    assert (names(plan.delete), names(plan.update), plan.generation) == (["b"], ["a"], 1)
    assert cluster.pools() == [{"name": "node-1", "generation": 1, "resourceSliceCount": 1}]


def test_a_slice_that_somebody_deleted_comes_back():
    desired = pool(part("a", "one"), part("b", "two"))
    cluster = Cluster()
    cluster.publish(desired)
    del cluster.stored[slice_name(ME, "b")]
    plan = cluster.publish(desired)
    assert (names(plan.update), names(plan.create), plan.generation) == (["a"], ["b"], 2)
    assert not cluster.publish(desired)


def test_all_deleted_begins_again_at_generation_1():
    desired = pool(part("a", "one"), part("b", "two"))
    cluster = Cluster()
    cluster.publish(desired)
    cluster.stored.clear()
    assert cluster.publish(desired).generation == 1


def test_a_change_by_somebody_else_is_undone():
    desired = pool(part("a", "one"))
    cluster = Cluster()
    cluster.publish(desired)
    cluster.stored[slice_name(ME, "a")]["spec"]["devices"].append({"name": "intruder"})
    plan = cluster.publish(desired)
    assert plan.update[0]["spec"]["devices"] == [{"name": "one"}]


def test_an_interrupted_rewrite_is_finished_in_its_generation():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one"), part("b", "two")))
    desired = pool(part("a", "1"), part("b", "2"))
    plan = plan_publish(desired, [*cluster.stored.values()], ME)
    cluster.carry_out(replace(plan, update=plan.update[:1]))
    assert [one["generation"] for one in cluster.pools()] == [2, 1]
    plan = cluster.publish(desired)
    assert (names(plan.update), plan.generation) == (["b"], 2)
    assert not cluster.publish(desired)


def test_slices_of_foreign_names_and_pools_are_deleted():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one")))
    old = copy.deepcopy(cluster.stored[slice_name(ME, "a")])
    old["metadata"]["name"] = "node-1-gpu.example.com-x7f2q"
    other = copy.deepcopy(old)
    other["metadata"]["name"] = "other-pool"
    other["spec"]["pool"]["name"] = "old-name"
    other["spec"]["pool"]["generation"] = 9
    cluster.stored |= {old["metadata"]["name"]: old, "other-pool": other}
    plan = cluster.publish(pool(part("a", "one")))
    assert names(plan.delete) == ["x7f2q", "other-pool"]
    assert (plan.update, plan.create, plan.generation) == ((), (), 1)


def test_a_newer_generation_of_a_foreign_name_is_passed():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one"), part("b", "two")))
    foreign = copy.deepcopy(cluster.stored[slice_name(ME, "a")])
    foreign["metadata"]["name"] = "foreign"
    foreign["spec"]["pool"]["generation"] = 4
    cluster.stored["foreign"] = foreign
    plan = cluster.publish(pool(part("a", "one"), part("b", "two")))
    assert (names(plan.delete), names(plan.update), plan.generation) == (
        ["foreign"],
        ["a", "b"],
        5,
    )


def test_a_renamed_pool_is_made_anew_because_its_name_is_immutable():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one")))
    plan = cluster.publish(pool(part("a", "one"), name="renamed"))
    assert (names(plan.delete), names(plan.create), plan.generation) == (["a"], ["a"], 1)


def test_another_order_of_devices_counts():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one", "two")))
    plan = cluster.publish(pool(part("a", "two", "one")))
    assert names(plan.update) == ["a"]


def test_metadata_that_others_added_survives_an_update():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one")))
    cluster.stored[slice_name(ME, "a")]["metadata"]["annotations"] = {"x": "y"}
    assert not cluster.publish(pool(part("a", "one")))
    plan = cluster.publish(pool(part("a", "two")))
    assert plan.update[0]["metadata"]["annotations"] == {"x": "y"}
    assert plan.update[0]["metadata"]["ownerReferences"][0]["uid"] == "node-uid"


def test_a_new_node_of_the_same_name_becomes_the_owner():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one")))
    plan = cluster.publish(pool(part("a", "one")), replace(ME, node_uid="second"))
    assert [owner["uid"] for owner in plan.update[0]["metadata"]["ownerReferences"]] == ["second"]


def test_an_unknown_node_neither_owns_nor_changes():
    unknown = replace(ME, node_uid=None)
    cluster = Cluster()
    plan = cluster.publish(pool(part("a", "one")), unknown)
    assert "ownerReferences" not in plan.create[0]["metadata"]
    owned = Cluster()
    owned.publish(pool(part("a", "one")))
    assert not owned.publish(pool(part("a", "one")), unknown)


def test_per_device_node_selection_is_not_ours():
    cluster = Cluster()
    cluster.publish(pool(part("a", "one")))
    cluster.stored[slice_name(ME, "a")]["spec"]["perDeviceNodeSelection"] = True
    (updated,) = cluster.publish(pool(part("a", "one"))).update
    assert "perDeviceNodeSelection" not in updated["spec"]


def tainted(**fields: str) -> Object:
    return device("one", taints=[{"key": "example.com/lost", "effect": "NoSchedule", **fields}])


def test_the_servers_time_of_a_taint_is_no_difference():
    cluster = Cluster()
    cluster.publish(pool(part("a", tainted(timeAdded=TIME))))
    assert not cluster.publish(pool(part("a", tainted())))


@pytest.mark.parametrize(
    ("mine", "writes"),
    [
        ("2026-01-01T00:00:00.7Z", False),
        ("2026-01-01T00:00:01Z", False),
        ("2026-01-01T01:00:00+01:00", False),
        ("2026-01-01T00:00:03Z", True),
        ("yesterday", True),
    ],
)
def test_times_of_taints_are_compared_to_the_second(mine, writes):
    cluster = Cluster()
    cluster.publish(pool(part("a", tainted(timeAdded=TIME))))
    assert bool(cluster.publish(pool(part("a", tainted(timeAdded=mine))))) is writes


def test_a_taint_that_stays_keeps_its_time_when_its_slice_is_rewritten():
    cluster = Cluster()
    cluster.publish(pool(part("a", tainted(timeAdded=TIME))))
    (updated,) = cluster.publish(pool(part("a", tainted(), "two"))).update
    assert updated["spec"]["devices"][0]["taints"][0]["timeAdded"] == TIME


def test_another_taint_does_not_inherit_the_time():
    cluster = Cluster()
    cluster.publish(pool(part("a", tainted(timeAdded=TIME))))
    (updated,) = cluster.publish(pool(part("a", tainted(value="other")))).update
    assert "timeAdded" not in updated["spec"]["devices"][0]["taints"][0]


def test_a_taint_that_goes_is_a_change():
    cluster = Cluster()
    cluster.publish(pool(part("a", tainted(timeAdded=TIME))))
    (updated,) = cluster.publish(pool(part("a", "one"))).update
    assert updated["spec"]["devices"] == [{"name": "one"}]


def test_counters_are_published_and_compared():
    sets = ({"name": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}},)
    uses = [{"counterSet": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}}]
    parts = (
        DesiredSlice("00-counters", shared_counters=sets),
        DesiredSlice("10-mig", devices=(device("mig-0", consumesCounters=uses),)),
    )
    cluster = Cluster()
    plan = cluster.publish(DesiredPool("node-1", parts))
    assert plan.create[0]["spec"]["sharedCounters"] == list(sets)
    assert not cluster.publish(DesiredPool("node-1", parts))
    more = ({"name": "gpu-0", "counters": {"memory-slice-0": {"value": "2"}}},)
    plan = cluster.publish(
        DesiredPool("node-1", (replace(parts[0], shared_counters=more), parts[1]))
    )
    assert names(plan.update) == ["00-counters"]


@pytest.mark.parametrize(
    ("node", "driver"),
    [("n" * 253, "gpu.example.com"), ("n.example.com", "d" * 63), ("a." * 126 + "a", "d" * 63)],
)
def test_names_are_dns_names_that_sort_by_key(node, driver):
    keys = ["00-cards", "01-mig", "a" * 63]
    identity = Identity(driver, node)
    made = [slice_name(identity, key) for key in keys]
    assert made == sorted(made)
    assert all(len(name) <= 253 and ".." not in name and "-." not in name for name in made)
    assert all(name.endswith(key) for name, key in zip(made, keys, strict=True))


def test_shortened_names_of_different_nodes_differ():
    one = slice_name(Identity("gpu.example.com", "n" * 250 + "a"), "cards")
    two = slice_name(Identity("gpu.example.com", "n" * 250 + "b"), "cards")
    assert one != two


def test_names_are_lower_case():
    assert slice_name(Identity("GPU.example.com", "Node"), "cards") == "node-gpu.example.com-cards"


def test_every_problem_is_listed_and_nothing_is_planned():
    uses = [
        {"counterSet": "none", "counters": {"a": {"value": "1"}}},
        {"counterSet": "gpu-0", "counters": {"b": {"value": "1"}}},
        {"counterSet": "gpu-0", "counters": {}},
    ]
    sets = (
        {"name": "gpu-0", "counters": {"a": {"value": "1"}}},
        {"name": "gpu-0", "counters": {"a": {"value": "1"}}},
        {"name": "gpu-1", "counters": {}},
        {"name": "gpu-2", "counters": {f"c{n}": {"value": "1"} for n in range(33)}},
        *({"name": f"more-{n}", "counters": {"a": {"value": "1"}}} for n in range(5)),
    )
    attributes = {f"a{n}": {"int": n} for n in range(32)}
    capacity = {"memory": {"value": "1Gi"}}
    taints = [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(17)]
    desired = pool(
        DesiredSlice("a", shared_counters=sets),
        part("b", "gpu-0", "gpu-0", "GPU"),
        part("b", device("full", attributes=attributes, capacity=capacity, taints=taints)),
        part("c", *(f"many-{n}" for n in range(129))),
        part("d", *(f"other-{n}" for n in range(64)), device("mig", consumesCounters=uses)),
    )
    with pytest.raises(PublishError) as caught:
        plan_publish(desired, [], ME)
    assert sorted(caught.value.problems) == sorted(
        [
            "ResourceSlice key name 'b' is used 2 times in the pool",
            "device name 'gpu-0' is used 2 times in the pool",
            "device name 'GPU' is not a DNS label",
            "counter set name 'gpu-0' is used 2 times in the pool",
            "device mig consumes from counter set 'none', which the pool does not have",
            "device mig consumes counter 'b', which 'gpu-0' does not have",
            "ResourceSlice a: counter sets: 9, at most 8 are allowed",
            "counter set gpu-1: no counters; leave the set out",
            "counter set gpu-2: counters: 33, at most 32 are allowed",
            "device full: attributes and capacities: 33, at most 32 are allowed",
            "device full: taints: 17, at most 16 are allowed",
            "ResourceSlice c: devices: 129, at most 128 are allowed",
            "ResourceSlice d: devices with taints or counters: 65, at most 64 are allowed",
            "device mig: counter sets consumed: 3, at most 2 are allowed",
        ]
    )
    assert "pool node-1 is not published" in str(caught.value)
