"""Stand-ins for the kubelet, the API server and the allocator: for tests, demos and benches.

Never imported by a running plugin.
"""
