"""``python -m e2e.kind [image | up | down | pytest arguments]``: a kind cluster and its tests.

Without arguments: packages and programs, the driver's image and the node image are made where
they are missing, a cluster of one control plane and two workers is created (``cluster.yaml`` has
its feature gates), the tests of the chart run on it, and it is deleted. ``up`` leaves it there
with the image loaded and the chart installed with simulated cards, ``down`` deletes it, ``image``
makes the node image alone.

Environment: ``ALIQUOT_KIND_ENGINE`` (docker, podman), ``ALIQUOT_KIND_IMAGE`` (a node image to use
instead), ``ALIQUOT_KIND_KEEP=1`` keeps the cluster after the tests.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster.console import phase, say
from e2e.cluster.errors import ClusterError
from e2e.image import build as image_build
from e2e.kind.cluster import KindCluster, setup
from e2e.sites.choose import VARIABLE, kind_cluster
from e2e.sites.helm import Helm
from e2e.sites.installed import base_values
from e2e.sites.remote import KindSite

E2E = Path(__file__).parent.parent
CHART_TESTS = ("test_chart.py", "test_chart_admission.py", "test_chart_nodes.py")


def created(cluster: KindCluster) -> KindCluster:
    """Set up and create the cluster; one that is there is replaced."""
    with phase("setup"):
        setup()
        image_build.archive()
    if cluster.exists():
        with phase("old kind cluster deleted"):
            cluster.delete()
    cluster.create()
    return cluster


def image() -> int:
    """Make what a creation would have to make first."""
    setup()
    kind_cluster().node_image()
    return 0


def up() -> int:
    """Create it, load the image, install the chart; says how to use it."""
    cluster = created(kind_cluster())
    site = KindSite(cluster)
    try:
        site.load()
        with phase("chart installed"):
            notes = Helm(site).upgrade(base_values(site))
    finally:
        site.close()
    sys.stdout.write(f"{notes}\nexport KUBECONFIG={cluster.kubeconfig}\n")
    return 0


def down() -> int:
    """Delete the cluster."""
    with phase("kind cluster deleted"):
        kind_cluster().delete()
    return 0


def run(arguments: Sequence[str]) -> int:
    """Create, test, delete; returns pytest's exit status."""
    cluster = created(kind_cluster())
    os.environ[VARIABLE] = "kind"
    paths = list(arguments) or [str(E2E / name) for name in CHART_TESTS]
    try:
        with phase("tests"):
            return int(pytest.main(paths))
    finally:
        if os.environ.get("ALIQUOT_KIND_KEEP"):
            say(f"kept: export KUBECONFIG={cluster.kubeconfig}; python -m e2e.kind down")
        else:
            down()


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    try:
        match list(arguments):
            case ["image"]:
                return image()
            case ["up"]:
                return up()
            case ["down"]:
                return down()
            case others:
                return run(others)
    except ClusterError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
