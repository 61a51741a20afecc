"""What ``aliquot doctor`` looks at. Each module has an area; each check returns findings."""
