"""Hours instead of seconds: what leaks or sticks only shows after many rounds."""
