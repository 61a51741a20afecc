"""Measurements: ``python -m bench prepare|node|all`` on a real cluster, ``bench.client`` anywhere."""
