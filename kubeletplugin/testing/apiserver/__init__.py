"""An API server for demos, tests and authors of drivers: real HTTP, no cluster.

It keeps objects in memory with resource versions, conflicts, watches with bookmarks and 410,
status subresources, dry runs, field selectors, server-side apply, the checks of ResourceSlices
and claims, and can play an old server that loses fields. ``tests/contract/cases_apiserver.py``
runs the same cases against it and a real kube-apiserver.

kmock 0.8 (``KubernetesEmulator``) was looked at first. It serves and tracks objects, but it has no
resource versions (so no conflicts, no resumed watch, no bookmarks, no 410), treats PUT as a merge,
and has no status subresource, dry run, field selectors, pages, server-side apply or validation.
That is all of what is needed here, so it is not used.
"""

from kubeletplugin.testing.apiserver.server import ApiServer, Fault

__all__ = ["ApiServer", "Fault"]
