"""DeviceClasses that go with the driver."""

from typing import Any


def whole_card_selector(driver: str) -> str:
    """CEL for one card as a whole, however it is published (design 6.4).

    An attribute that a device lacks aborts the allocation, so it is asked for with ``.?``.
    """
    domain = f"device.attributes['{driver}']"
    return f"device.driver == '{driver}' && {domain}.?wholeCard.orValue(false)"


def plain_selector(driver: str) -> str:
    """The same in comparisons only, for an allocator without a CEL engine."""
    return f"device.driver == '{driver}' && device.attributes['{driver}'].wholeCard == true"


def device_class(
    driver: str, expression: str, extended_resource_name: str | None = None
) -> dict[str, Any]:
    """The class ``gpu``: one whole card.

    With ``extended_resource_name`` pods that ask for that resource in ``limits`` get their cards
    from this class (KEP-5004, ``DRAExtendedResource``).
    """
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if extended_resource_name:
        spec["extendedResourceName"] = extended_resource_name
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": spec,
    }
