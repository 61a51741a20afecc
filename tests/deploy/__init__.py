"""What is installed on a cluster, as far as no cluster and no helm is needed."""
