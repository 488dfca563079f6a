"""Inference: guides, the ELBO, drivers, prediction, checkpoints and reports."""

if __name__ != "probattn.inference":
    raise ImportError(
        f"this folder is a part of probattn and no package called {__name__!r}: write `import probattn.inference`"
    )
