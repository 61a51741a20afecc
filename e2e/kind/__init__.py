"""A kind cluster: one control plane, two workers, on Docker or on podman and runc."""
