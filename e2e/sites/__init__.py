"""Clusters on which the chart's tests run: the local one, kind, and any by its kubeconfig."""
