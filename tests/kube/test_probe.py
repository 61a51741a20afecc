import pytest

from kubeletplugin.kube import ApiError
from kubeletplugin.probe import COUNTERS, FEATURES, SHARING, TAINTS, probe, server_version
from kubeletplugin.testing.apiserver import ApiServer


@pytest.mark.parametrize("version", ["v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2"])
@pytest.mark.parametrize(
    "dropped", [(), (TAINTS,), (COUNTERS,), (SHARING,), (COUNTERS, SHARING), tuple(FEATURES)]
)
async def test_the_probe_tells_what_is_kept_and_stores_nothing(version, dropped):
    async with ApiServer(version=version, drop_features=dropped) as server:
        found = await probe(server.client(), "gpu.example.com", "node-1")
        assert found == FEATURES - set(dropped)
        assert server.objects("resourceslices") == []
        assert not server.writes


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v1.36.3", (36, 3)),
        ("v1.34.1+k3s1", (34, 1)),
        ("v1.37.0-gke.100", (37, 0)),
        ("1.33", (33, 0)),
    ],
)
async def test_versions_of_distributions_are_read(text, version):
    async with ApiServer(version=text) as server:
        assert await server_version(server.client()) == version


async def test_an_unknown_version_is_an_error():
    async with ApiServer(version="v2.0.0") as server:
        with pytest.raises(ApiError, match=r"not 1\.x"):
            await server_version(server.client())
