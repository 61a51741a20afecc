"""DeviceClasses that go with the driver."""

import re
from collections.abc import Iterable
from typing import Any

WHOLE_RESOURCE = "nvidia.com/gpu"

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_DOMAIN, _LONGEST_NAME = 253, 63
_QUOTA = "requests."  # stands before it in a ResourceQuota, and counts as part of the domain
_NATIVE = "kubernetes.io/"


def resource_problem(name: str) -> str:
    """Why ``name`` cannot be a class's ``extendedResourceName``; empty where it can.

    As the API server judges (``ExtendedResourceName`` in apimachinery's validation).
    """
    domain, slash, rest = name.partition("/")
    if not slash:
        return f"has no domain; want one such as {WHOLE_RESOURCE}"
    if _NATIVE in name:
        return f"has {_NATIVE}, which belongs to Kubernetes' own resources"
    if name.startswith(_QUOTA):
        return f"begins with {_QUOTA}, which only quotas do"
    if not _DOMAIN.fullmatch(domain) or len(_QUOTA + domain) > _LONGEST_DOMAIN:
        most = _LONGEST_DOMAIN - len(_QUOTA)
        return (
            f"has no DNS name before the slash: at most {most} lower-case letters, digits, inner "
            "dashes and dots"
        )
    if not _NAME.fullmatch(rest) or len(rest) > _LONGEST_NAME:
        return (
            f"has no name after the slash: at most {_LONGEST_NAME} letters, digits, and inner "
            "dashes, dots and underscores"
        )
    return ""


def whole_card_selector(driver: str) -> str:
    """CEL for one card as a whole, however it is published (design 6.4).

    An attribute that a device lacks aborts the allocation, so it is asked for with ``.?``.
    """
    domain = f"device.attributes['{driver}']"
    return f"device.driver == '{driver}' && {domain}.?wholeCard.orValue(false)"


def plain_selector(driver: str) -> str:
    """The same in comparisons only, for an allocator without a CEL engine."""
    return f"device.driver == '{driver}' && device.attributes['{driver}'].wholeCard == true"


def partition_selector(driver: str, profile: str | None = None) -> str:
    """CEL for one MIG partition, of any profile or of this one."""
    domain = f"device.attributes['{driver}']"
    if profile is None:
        return type_selector(driver, "mig")
    return f"device.driver == '{driver}' && {domain}.?profile.orValue('') == '{profile}'"


def type_selector(driver: str, type_: str) -> str:
    """CEL for one device of a type."""
    return f"device.driver == '{driver}' && device.attributes['{driver}'].type == '{type_}'"


def mig_resource(profile: str) -> str:
    """What NVIDIA's device plugin calls a profile with its mixed strategy, so that pods written
    for it run unchanged: ``1g.5gb+me`` is ``nvidia.com/mig-1g.5gb.me``."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def device_class(
    driver: str, expression: str, extended_resource_name: str | None = None, name: str = "gpu"
) -> dict[str, Any]:
    """A class of the driver; ``gpu`` is one whole card.

    With ``extended_resource_name`` pods that ask for that resource in ``limits`` get their cards
    from this class (KEP-5004, ``DRAExtendedResource``).
    """
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if extended_resource_name:
        spec["extendedResourceName"] = extended_resource_name
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def all_classes(
    driver: str, profiles: Iterable[str], whole_resource: str | None, *, extended: bool
) -> list[dict[str, Any]]:
    """``gpu``, ``gpu-share``, ``gpu-timeslice``, ``mig``, and one class a profile; with
    ``extended``, each profile's class answers for the resource that NVIDIA's device plugin has
    for it."""
    found = [
        device_class(driver, whole_card_selector(driver), whole_resource),
        device_class(driver, type_selector(driver, "mps"), name="gpu-share"),
        device_class(driver, type_selector(driver, "timeslice"), name="gpu-timeslice"),
        device_class(driver, partition_selector(driver), name="mig"),
    ]
    for profile in profiles:
        found.append(
            device_class(
                driver,
                partition_selector(driver, profile),
                mig_resource(profile) if extended else None,
                name="mig-" + re.sub("[^a-z0-9.-]+", "-", profile.lower()),
            )
        )
    return found
