"""Cluster side: fleet view, allocator, webhooks. Imports ``driver`` never (import contract)."""
