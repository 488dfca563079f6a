"""Hosts: networks and probabilistic programs whose attention goes through sites."""

if __name__ != "probattn.models":
    raise ImportError(
        f"this folder is a part of probattn, not a package called {__name__!r}: write `import probattn.models`"
    )
