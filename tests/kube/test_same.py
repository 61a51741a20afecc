import pytest

from kubeletplugin.quantities import canonical, quantity
from kubeletplugin.same import same_counters, same_devices


def gpu(**fields: object) -> dict[str, object]:
    return {"name": "gpu-0", **fields}


def memory(value: object, **policy: object) -> dict[str, object]:
    entry = {"value": value, **({"requestPolicy": policy} if policy else {})}
    return gpu(capacity={"memory": entry})


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [
        (gpu(attributes={}, capacity={}, taints=[], consumesCounters=[]), gpu()),
        (gpu(nodeSelector=None), gpu()),
        (gpu(attributes={"a": {"int": 1}, "b": {"int": 2}}),
         gpu(attributes={"b": {"int": 2}, "a": {"int": 1}})),
        (gpu(bindingConditions=("a", "b")), gpu(bindingConditions=["a", "b"])),
        (memory("1024Mi"), memory("1Gi")),
        (memory(80), memory("80")),
        (memory("8Gi", default="1024Mi", validRange={"min": "1Gi", "step": "1024Mi"}),
         memory("8Gi", default="1Gi", validRange={"min": "1024Mi", "step": "1Gi"})),
        (memory("8", default="1", validValues=("1", "2")),
         memory("8", default="1", validValues=["1", "2"])),
        (memory("unreadable"), memory("unreadable")),
        (gpu(consumesCounters=[{"counterSet": "c", "counters": {"a": {"value": "1000"}}}]),
         gpu(consumesCounters=[{"counterSet": "c", "counters": {"a": {"value": "1k"}}}])),
        (gpu(taints=[{"key": "a", "value": "", "effect": "None"}]),
         gpu(taints=[{"key": "a", "effect": "None"}])),
    ],
)  # fmt: skip
def test_what_kubernetes_takes_for_the_same(wanted, stored):
    assert same_devices([wanted], [stored])


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [
        (gpu(), {"name": "gpu-1"}),
        (gpu(attributes={"a": {"int": 1}}), gpu(attributes={"a": {"int": 2}})),
        (gpu(attributes={"a": {"bool": False}}), gpu()),
        (gpu(attributes={"a": {"string": ""}}), gpu(attributes={"a": {"string": "x"}})),
        (gpu(allowMultipleAllocations=True), gpu()),
        (gpu(bindingConditions=["a", "b"]), gpu(bindingConditions=["b", "a"])),
        (memory("1Gi"), memory("2Gi")),
        (memory("1Gi", default="1Gi"), memory("1Gi")),
        (memory("1Gi"), gpu(capacity={"memory": "1Gi"})),
        (gpu(taints=[{"key": "a", "effect": "None"}]), gpu()),
        (gpu(taints=[{"key": "a", "effect": "None"}]),
         gpu(taints=[{"key": "a", "effect": "NoExecute"}])),
        (gpu(taints=[{"key": "a", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}]),
         gpu(taints=[{"key": "a", "effect": "None"}])),
    ],
)  # fmt: skip
def test_what_is_a_difference(wanted, stored):
    assert not same_devices([wanted], [stored])


def test_a_missing_device_is_a_difference():
    assert not same_devices([gpu()], [])


def test_counter_sets_are_compared_by_amount_and_order():
    one, two = ({"name": name, "counters": {"a": {"value": "1000"}}} for name in "xy")
    assert same_counters([one, two], [{"name": "x", "counters": {"a": {"value": "1k"}}}, two])
    assert not same_counters([one, two], [two, one])


@pytest.mark.parametrize(
    ("text", "amount"),
    [("10Gi", 10 * 2**30), ("1.5Gi", 3 * 2**29), ("1k", 1000), ("1e3", 1000), (7, 7), ("-1", -1)],
)
def test_quantities_are_exact(text, amount):
    assert quantity(text) == amount


@pytest.mark.parametrize("text", ["", "1 Gi", "1_000", "inf", "1GiB", "\uff11", "1\n", True, None])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("text", "short"),
    [("1024Ki", "1Mi"), ("1000Ki", "1000Ki"), ("0.25", "250m"), ("2000000", "2M"), ("0Gi", "0"),
     ("0.5Ki", "512"), ("1E3", "1E3"), ("5E", "5E"), ("-2048Mi", "-2Gi")],
)  # fmt: skip
def test_the_shortest_form_has_no_fraction(text, short):
    assert canonical(text) == short
