"""Files: written whole or not at all, with checksums, and read back with errors that name the problem."""
