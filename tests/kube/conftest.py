import pytest

from kubeletplugin.testing.apiserver import ApiServer


@pytest.fixture
async def server():
    async with ApiServer(bookmark_s=0.05) as running:
        yield running


@pytest.fixture
def client(server):
    return server.client()
