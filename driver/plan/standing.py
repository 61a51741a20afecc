"""What a prepare finds done already, for the claims beside it."""

from collections.abc import Iterable, Set

from driver.model.claims import ClaimState, Record
from driver.model.devices import Device, MpsGpu, WholeGpu
from driver.model.steps import ServeMps, Step
from driver.plan.limits import CGROUP


def standing(records: Iterable[Record], boot_id: str, served: Set[ServeMps]) -> Set[Step]:
    """Steps that have their effect already, and that claims hold which need it. ``served``: the
    daemons that run now, by the step that starts them."""
    return {
        step
        for record in records
        if record.state is ClaimState.COMPLETED and record.boot_id == boot_id
        for step in record.steps
        if not isinstance(step, ServeMps) or step in served
    }


def changes_nothing(device: Device | None, steps: Set[Step]) -> bool:
    """Whether it is sure, before it is planned, that preparing this device does nothing on the
    node: a whole card that is never cut up, or a further share of a card whose daemon stands in
    ``steps`` and in which shares have nothing of their own."""
    match device:
        case WholeGpu(toggle=None):
            return True
        case MpsGpu(gpu=gpu, toggle=None, limits=limits) if limits.memory != CGROUP:
            return any(
                isinstance(step, ServeMps) and step.gpu == gpu.uuid and not step.has_namespaces
                for step in steps
            )
        case _:
            return False
