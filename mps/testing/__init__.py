"""For tests: the real control program, which runs without a GPU."""
