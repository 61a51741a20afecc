import json

import pytest

from driver.errors import StateError
from driver.model.gpu import Engines, Fabric
from driver.plan.facts import gpu_from_dict, gpu_to_dict
from tests.plan.builders import cuttable, gpu, linked, switched

CARDS = [
    pytest.param(gpu(), id="plain"),
    pytest.param(linked(0, 1, 2), id="linked"),
    pytest.param(cuttable(0, "a30"), id="cuttable"),
    pytest.param(switched(0, fabric=Fabric("cluster", 1)), id="fabric"),
    pytest.param(gpu(mig_mode=None, engines=Engines(), numa_node=None), id="silent"),
]


@pytest.mark.parametrize("card", CARDS)
def test_facts_survive_the_way_through_json(card):
    assert gpu_from_dict(json.loads(json.dumps(gpu_to_dict(card)))) == card


@pytest.mark.parametrize(
    "change",
    [{"compute_capability": "9"}, {"compute_capability": ["x", 0]}, {"engines": 1}, {"colour": 1}],
)
def test_facts_of_another_shape_name_the_card(change):
    with pytest.raises(StateError, match=f"remembered facts of card {gpu().uuid}: "):
        gpu_from_dict(gpu_to_dict(gpu()) | change)


def test_facts_that_lack_a_field_name_the_card():
    raw = {key: value for key, value in gpu_to_dict(gpu()).items() if key != "nvlink"}
    with pytest.raises(StateError, match=f"remembered facts of card {gpu().uuid}: 'nvlink'"):
        gpu_from_dict(raw)
