"""Measurements: ``python -m bench all`` on a real cluster, ``bench.client`` on any."""
