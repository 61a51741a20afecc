"""The node's MPS supervisor: a control daemon for each shared card, apart from the driver."""
