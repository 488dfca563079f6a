"""GraphWriter: texts about knowledge graphs (Koncel-Kedziorski et al., NAACL 2019).

Importing :mod:`probattn.models` makes the network known to transformers, so that ``AutoModel``,
``AutoModelForSeq2SeqLM`` and ``from_pretrained`` find it by the configuration in a folder.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from probattn.models.graphwriter.configuration import GraphWriterConfig
from probattn.models.graphwriter.graph import adjacency
from probattn.models.graphwriter.network import (
    GraphWriterForGeneration,
    GraphWriterModel,
    GraphWriterOutput,
)
from probattn.models.graphwriter.program import GraphTextProgram, repeated_copies
from probattn.models.graphwriter.search import WritingOptions, write_texts

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

AutoConfig.register(GraphWriterConfig.model_type, GraphWriterConfig, exist_ok=True)
AutoModel.register(GraphWriterConfig, GraphWriterModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(GraphWriterConfig, GraphWriterForGeneration, exist_ok=True)
