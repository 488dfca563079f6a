"""Tables of the documentation: a module for each file in docs/data."""
