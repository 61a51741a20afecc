"""Clusters for tests and benches: build the programs, boot a node, talk to it, leave nothing."""
