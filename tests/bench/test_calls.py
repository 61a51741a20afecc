"""The timed calls, against a socket of this process."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bench.calls import BenchError, connected, one_after_another
from kubeletplugin.contract import ClaimRef
from kubeletplugin.proto import dra_v1_pb2 as pb
from kubeletplugin.proto import dra_v1_pb2_grpc


class Plugin(dra_v1_pb2_grpc.DRAPluginServicer):
    """Knows which claims are prepared; refuses those that are called bad."""

    def __init__(self):
        self.prepared = set()

    def NodePrepareResources(self, request, context):  # noqa: N802
        answer = pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].error = "no room" if claim.name == "bad" else ""
            self.prepared.add(claim.uid)
        return answer

    def NodeUnprepareResources(self, request, context):  # noqa: N802
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].SetInParent()
            self.prepared.discard(claim.uid)
        return answer


@pytest.fixture
def plugin(tmp_path):
    served = Plugin()
    server = grpc.server(ThreadPoolExecutor(4))
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(served, server)
    server.add_insecure_port(f"unix:{tmp_path}/dra.sock")
    server.start()
    yield served
    server.stop(None).wait()


@pytest.fixture
def socket(plugin, tmp_path):
    with connected("ours", tmp_path / "dra.sock") as found:
        yield found


def refs(count):
    return [ClaimRef("default", f"c{n}", f"uid-{n}") for n in range(count)]


def test_each_kind_of_call_is_timed_once_a_claim_and_nothing_stays_prepared(socket, plugin):
    times = one_after_another([(socket, refs(5))], pause_s=0)["ours"]
    for kind in ("empty", "prepare", "again", "unprepare"):
        assert len(times.of(kind)) == 5
        assert all(each > 0 for each in times.of(kind))
    assert plugin.prepared == set()


def test_calls_at_once_are_all_answered(socket, plugin):
    total, each = socket.prepare_at_once(refs(20))
    assert len(plugin.prepared) == len(each) == 20
    assert total >= each[-1] >= each[0]


def test_a_refused_claim_ends_the_bench_with_its_answer(socket):
    with pytest.raises(BenchError, match="ours: claim default/bad:u: no room"):
        socket.prepare(ClaimRef("default", "bad", "u"))
