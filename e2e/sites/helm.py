"""helm on a site: each call with a home of its own, values as a file."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster import build
from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import inside_environment
from e2e.cluster.targets import HELM
from e2e.sites.site import Site

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "aliquot"
RELEASE = "aliquot"
NAMESPACE = "aliquot-system"
_TIMEOUT_S = 300

Values = Mapping[str, Any]


class HelmError(ClusterError):
    """helm refused or failed; carries what it printed."""


def merged(*layers: Values) -> dict[str, Any]:
    """Values of later layers win, key by key, as helm merges them."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = result.get(key)
            if isinstance(value, Mapping) and isinstance(old, Mapping):
                result[key] = merged(old, value)
            else:
                result[key] = value
    return result


def _program() -> str:
    return str(build.binaries(HELM) / "helm")


def _run(argv: list[str], values: Values | None, *more: str) -> str:
    with tempfile.TemporaryDirectory(prefix="aliquot-helm-") as home:
        options: list[str] = []
        if values is not None:
            path = Path(home) / "values.json"
            path.write_text(json.dumps(values), encoding="utf-8")
            options = [f"--values={path}"]
        folders = {f"HELM_{kind}_HOME": f"{home}/{kind}" for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [*argv, *options, *more],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S + 60,
            env={**inside_environment(), **folders, "HOME": os.environ.get("HOME", home)},
        )
    if done.returncode != 0:
        raise HelmError(f"{' '.join(argv[-4:])}: {(done.stderr + done.stdout).strip()}")
    return done.stdout


def lint(values: Values) -> str:
    """``helm lint --strict``. Raises HelmError."""
    return _run([_program(), "lint", "--strict", str(CHART)], values)


def template(values: Values, kubernetes: str = "1.37.2", *more: str) -> str:
    """The rendered YAML for a version of Kubernetes, hooks included. Raises HelmError."""
    argv = [_program(), "template", RELEASE, str(CHART), f"--namespace={NAMESPACE}"]
    return _run(argv, values, f"--kube-version={kubernetes}", *more)


class Helm:
    """helm against one cluster; one release."""

    def __init__(self, site: Site, release: str = RELEASE) -> None:
        self._site = site
        self._release = release

    def _call(self, command: str, *arguments: str, values: Values | None = None) -> str:
        where = [f"--kubeconfig={self._site.kubeconfig}", f"--namespace={NAMESPACE}"]
        argv = self._site.argv([_program(), command, self._release, *arguments])
        return _run(argv, values, *where)

    def upgrade(self, values: Values, *more: str) -> str:
        """Install, or upgrade, and wait until everything is ready. Prints the notes."""
        waits = ["--install", "--create-namespace", "--wait", f"--timeout={_TIMEOUT_S}s"]
        return self._call("upgrade", str(CHART), *waits, *more, values=values)

    def rollback(self) -> str:
        """To the revision before, and wait."""
        return self._call("rollback", "--wait", f"--timeout={_TIMEOUT_S}s")

    def uninstall(self) -> str:
        """Remove the release and wait until its objects are gone. Absent is fine."""
        return self._call("uninstall", "--ignore-not-found", "--wait", f"--timeout={_TIMEOUT_S}s")

    def test(self) -> str:
        """``helm test`` with the pod's log. Raises HelmError if it fails."""
        return self._call("test", "--logs", "--timeout=120s")
