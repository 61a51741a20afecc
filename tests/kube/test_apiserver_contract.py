"""The embedded server behaves as a real one does where we rely on it."""

from tests.contract.cases_apiserver import ApiServerCases, world

__all__ = ["TestEmbeddedApiServer", "world"]  # the fixture must stand in this module


class TestEmbeddedApiServer(ApiServerCases):
    """With the fixture ``client`` of this folder."""
