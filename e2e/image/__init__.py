"""The driver's own image, built without a registry."""
