"""Data sets: labelled texts, parallel text, texts about graphs, questions about images, citation graphs.

They are built in, files of the user, or from the Hugging Face hub. Built-in ones are read from installed packages,
whose code is not run, or from the folder that the environment variable ``PROBATTN_DATA`` names. Every data set states
its source and, if known, its licence.
"""

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.data.builtin import BUILT_IN, BuiltIn
    from probattn.data.dataset import TextDataset
    from probattn.data.errors import DataError, DataWarning
    from probattn.data.files import DATA_VARIABLE, package_file
    from probattn.data.graph_texts import GraphText, GraphTexts, read_graph_texts, read_relations
    from probattn.data.identity import SPLITS, Split, split_of, text_key
    from probattn.data.node_graph import NodeGraph
    from probattn.data.planetoid import PLANETOID, load_planetoid
    from probattn.data.region_files import ImageFiles
    from probattn.data.rows import Columns
    from probattn.data.sentence_pairs import (
        PairCollate,
        ParallelSplits,
        SentencePairs,
        TokenizedPairs,
        load_multi30k,
        read_pairs,
    )
    from probattn.data.sources import ROLES, Role, Source
    from probattn.data.subwords import SubwordModel, Subwords
    from probattn.data.tables import read_hub, read_table
    from probattn.data.task import Task, load_task
    from probattn.data.tokenized_graph_texts import GraphTextCollate, GraphVocabulary, TokenizedGraphTexts
    from probattn.data.tokens import OnLong, PadCollate, TokenizedTexts, length_limit
    from probattn.data.visual_questions import (
        TokenizedVisualQuestions,
        VisualQuestion,
        VisualQuestionCollate,
        VisualQuestions,
        read_visual_questions,
    )
    from probattn.data.words import WordSplit, WordVectors, word_tokenizer, word_vectors

__all__ = ["BUILT_IN", "BuiltIn", "Columns", "DATA_VARIABLE", "DataError", "DataWarning", "GraphText"]
__all__ += ["GraphTextCollate", "GraphTexts", "GraphVocabulary", "ImageFiles", "NodeGraph", "OnLong"]
__all__ += ["PLANETOID", "PadCollate", "PairCollate", "ParallelSplits", "ROLES", "Role", "SPLITS"]
__all__ += ["SentencePairs", "Source", "Split", "SubwordModel", "Subwords", "Task", "TextDataset"]
__all__ += ["TokenizedGraphTexts", "TokenizedPairs", "TokenizedTexts", "TokenizedVisualQuestions"]
__all__ += ["VisualQuestion", "VisualQuestionCollate", "VisualQuestions", "WordSplit", "WordVectors"]
__all__ += ["length_limit", "load_multi30k", "load_planetoid", "load_task", "package_file"]
__all__ += ["read_graph_texts", "read_hub", "read_pairs", "read_relations", "read_table"]
__all__ += ["read_visual_questions", "split_of", "text_key", "word_tokenizer", "word_vectors"]

_MODULES = """errors rows dataset files identity tables builtin sources task tokens words subwords sentence_pairs
graph_texts tokenized_graph_texts node_graph planetoid region_files visual_questions"""

__getattr__ = imported_when_used(__name__, __all__, _MODULES.split(), options=())
