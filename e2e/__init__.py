"""End-to-end tests: the driver under a real control plane, kubelet and containerd."""
