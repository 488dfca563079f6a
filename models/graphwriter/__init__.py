"""GraphWriter: a network that writes texts about knowledge graphs (Koncel-Kedziorski et al., NAACL 2019).

Importing this module registers the networks with transformers' Auto classes.
"""

from probattn.models.graphwriter.graph import GraphWriterConfig, adjacency
from probattn.models.graphwriter.network import (
    GraphTextProgram,
    GraphWriterForGeneration,
    GraphWriterModel,
    GraphWriterOutput,
    WritingOptions,
    repeated_copies,
    write_texts,
)

__all__ = ["GraphWriterConfig", "adjacency"]
__all__ += ["GraphTextProgram", "GraphWriterForGeneration", "GraphWriterModel", "GraphWriterOutput"]
__all__ += ["WritingOptions", "repeated_copies", "write_texts"]
