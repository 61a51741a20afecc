"""The policy on shares, on a real API server: dry runs, nothing is stored but the policy."""

from collections.abc import Iterator

import pytest

from e2e.cluster.errors import KubeError
from e2e.cluster.kube import Kube, Object, parse_documents
from e2e.cluster.polling import poll
from e2e.sites.helm import template
from e2e.sites.site import Site
from e2e.workloads import claim, claim_spec, exactly
from e2e.workloads import template as claim_template

POLICY = "aliquot-single-shares"


@pytest.fixture(scope="module")
def kube(site: Site) -> Iterator[Kube]:
    """The policy is there and in force."""
    shown = "--show-only=templates/admission.yaml"
    text = template(
        {"admission": {"singleShares": "always", "ownNodeSlices": False}}, "1.37.2", shown
    )
    objects = parse_documents(text)
    site.kube.apply(objects)
    bad = claim("probe", "default", share(count=2))
    poll(lambda: "one share" in refusal(site.kube, bad), "the policy to be in force")
    yield site.kube
    for item in objects:
        site.kube.delete(item["kind"], item["metadata"]["name"])


def share(class_name: str = "gpu-share", **more: object) -> Object:
    return claim_spec({"name": "s", "exactly": {"deviceClassName": class_name, **more}})


def refusal(kube: Kube, item: Object) -> str:
    """What the API server says against it, "" if it would take it."""
    path = kube.resource(item["kind"], item["apiVersion"]).path("default")
    try:
        kube.request("POST", path, item, dryRun="All")
    except KubeError as error:
        return error.message
    return ""


GOOD = {
    "one share": share(),
    "one share, said so": share(count=1, allocationMode="ExactCount"),
    "two requests": claim_spec(
        {"name": "a", "exactly": {"deviceClassName": "gpu-share"}},
        {"name": "b", "exactly": {"deviceClassName": "gpu-timeslice"}},
    ),
    "many whole cards": claim_spec(exactly(count=4)),
    "an alternative": claim_spec(
        {"name": "a", "firstAvailable": [{"name": "s", "deviceClassName": "gpu-share"}]}
    ),
}
BAD = {
    "two shares": share(count=2),
    "two turns": share("gpu-timeslice", count=2),
    "all shares": share(allocationMode="All"),
    "an alternative of two": claim_spec(
        {
            "name": "a",
            "firstAvailable": [
                {"name": "g", "deviceClassName": "gpu"},
                {"name": "s", "deviceClassName": "gpu-share", "count": 2},
            ],
        }
    ),
}


@pytest.mark.parametrize("kind", [claim, claim_template])
@pytest.mark.parametrize("what", GOOD)
def test_one_share_a_request_is_taken(kube: Kube, what: str, kind):
    assert refusal(kube, kind("c", "default", GOOD[what])) == ""


@pytest.mark.parametrize("kind", [claim, claim_template])
@pytest.mark.parametrize("what", BAD)
def test_more_are_refused_and_told_what_to_write(kube: Kube, what: str, kind):
    said = refusal(kube, kind("c", "default", BAD[what]))

    assert "count 1" in said
    assert "one request for each share" in said


def test_an_older_version_of_the_api_is_no_way_around(kube: Kube):
    request = {
        "name": "s",
        "deviceClassName": "gpu-share",
        "allocationMode": "ExactCount",
        "count": 2,
    }
    item = claim("c", "default", claim_spec(request))
    item["apiVersion"] = "resource.k8s.io/v1beta1"
    if not any(r.api_version == item["apiVersion"] for r in kube.resources()):
        pytest.skip("this API server does not serve v1beta1")

    assert "one share" in refusal(kube, item)
