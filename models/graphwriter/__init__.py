"""GraphWriter: texts about knowledge graphs (Koncel-Kedziorski et al., NAACL 2019).

Importing it makes the networks known to transformers' Auto classes, which find them by a folder's configuration.
"""

from probattn.models.graphwriter.graph import GraphWriterConfig, adjacency
from probattn.models.graphwriter.network import GraphWriterForGeneration, GraphWriterModel, GraphWriterOutput
from probattn.models.graphwriter.program import GraphTextProgram, WritingOptions, repeated_copies, write_texts

__all__ = [
    "GraphTextProgram",
    "GraphWriterConfig",
    "GraphWriterForGeneration",
    "GraphWriterModel",
    "GraphWriterOutput",
    "WritingOptions",
    "adjacency",
    "repeated_copies",
    "write_texts",
]
