import copy

import kubernetes_validate
import pytest

from driver.plan.status import already_says, status_patch
from tests.plan.builders import DRIVER, allocation, claim, gpu, record, whole

A, B = gpu(0), gpu(1)
GPUS = {A.uuid: A}
NOW = "2026-01-02T03:04:05Z"


def patch(*allocations, cards, gpus=GPUS, now=NOW):
    return status_patch(record(claim("a", *allocations), cards), gpus, driver=DRIVER, now=now)


def devices(*allocations, cards, gpus=GPUS):
    return patch(*allocations, cards=cards, gpus=gpus)["status"]["devices"]


def test_a_prepared_card_tells_what_it_holds_and_by_what_limits_hold():
    assert patch(allocation(whole(A)), cards=[A]) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim-a", "namespace": "team", "uid": "a"},
        "status": {
            "devices": [
                {
                    "driver": DRIVER,
                    "pool": "node-1",
                    "device": "gpu-00000000",
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "reason": "Prepared",
                            "message": f"whole card {A.uuid} (NVIDIA H100 80GB HBM3); memory "
                            "limited by hardware, compute by hardware",
                            "lastTransitionTime": NOW,
                        }
                    ],
                    "data": {
                        "type": "gpu",
                        "uuid": A.uuid,
                        "product": "NVIDIA H100 80GB HBM3",
                        "memoryLimit": "hardware",
                        "computeLimit": "hardware",
                    },
                }
            ]
        },
    }


@pytest.mark.parametrize("version", ["1.34.0", "1.35.0", "1.36.0", "1.37.0"])
def test_the_patch_passes_the_strict_schema(version):
    share = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    body = patch(allocation(whole(A), share_id=share), cards=[A])
    kubernetes_validate.validate(body | {"spec": {}}, version, strict=True)


def test_admin_access_holds_nothing_and_has_no_limits():
    (entry,) = devices(allocation(whole(A), admin=True), cards=[A])
    assert entry["conditions"][0]["message"].startswith(f"admin access to card {A.uuid}")
    assert (entry["data"]["memoryLimit"], entry["data"]["computeLimit"]) == ("none", "none")


def test_a_card_that_is_gone_is_still_named_by_its_uuid():
    (entry,) = devices(allocation(whole(B)), cards=[B])
    assert entry["data"] == {
        "type": "gpu",
        "uuid": B.uuid,
        "memoryLimit": "hardware",
        "computeLimit": "hardware",
    }


def test_entries_are_keyed_by_share_and_stand_once():
    shares = [allocation(whole(A), n, share_id=share) for n, share in enumerate("xyx")]
    assert [entry["shareID"] for entry in devices(*shares, cards=[A, A, A])] == ["x", "y"]


def test_a_claim_that_says_it_already_needs_no_write():
    wanted = patch(allocation(whole(A)), cards=[A])
    claim_now = {"status": copy.deepcopy(wanted["status"])}
    other = {"driver": "net.example.com", "pool": "p", "device": "eth0"}
    claim_now["status"]["devices"].insert(0, other)
    later = patch(allocation(whole(A)), cards=[A], now="2026-01-02T09:00:00Z")
    assert already_says(claim_now, later)
    claim_now["status"]["devices"][1]["data"]["uuid"] = "GPU-other"
    assert not already_says(claim_now, later)


@pytest.mark.parametrize("status", [{}, {"status": None}, {"status": {"devices": None}}])
def test_a_claim_that_says_nothing_yet_needs_a_write(status):
    assert not already_says(status, patch(allocation(whole(A)), cards=[A]))
