"""What recipes of all tasks share: sections, reading, messages, references, methods and training."""
