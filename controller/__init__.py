"""Cluster side: fleet view, allocator, webhooks. Never imports ``driver`` (import-linter contract)."""
