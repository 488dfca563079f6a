"""Programs of networks with a head: what is observed of their output."""
