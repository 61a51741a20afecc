"""A control program without NVIDIA: the replies of 535, 550, 555, 580 and 615, for tests and demo.

What 535 to 555 answer was compared with the real programs (tests/mps/test_conformance.py); 580 and
615 follow NVIDIA's documentation. Protocol and sockets between front end and daemon are its own.
"""
