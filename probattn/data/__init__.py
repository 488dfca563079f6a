"""Labelled texts: built-in data sets, a user's own files, the hub; batches of tokens made of them; citation graphs.

Every data set names its source and its licence. Built-in ones are read from installed packages, whose code is not run,
or from the folder that the environment variable ``PROBATTN_DATA`` names.
"""

from probattn.data.builtin import BUILT_IN, BuiltIn
from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, DataWarning
from probattn.data.folder import DATA_VARIABLE
from probattn.data.hub import read_hub
from probattn.data.identity import SPLITS, Split, split_of, text_key
from probattn.data.node_graph import NodeGraph
from probattn.data.packages import package_file
from probattn.data.planetoid import PLANETOID, load_planetoid
from probattn.data.rows import Columns
from probattn.data.sources import ROLES, Role, Source
from probattn.data.tables import read_table
from probattn.data.task import Task, load_task
from probattn.data.tokens import OnLong, PadCollate, TokenizedTexts, length_limit

__all__ = [
    "BUILT_IN",
    "BuiltIn",
    "Columns",
    "DATA_VARIABLE",
    "DataError",
    "DataWarning",
    "NodeGraph",
    "OnLong",
    "PLANETOID",
    "PadCollate",
    "ROLES",
    "Role",
    "SPLITS",
    "Source",
    "Split",
    "Task",
    "TextDataset",
    "TokenizedTexts",
    "length_limit",
    "load_planetoid",
    "load_task",
    "package_file",
    "read_hub",
    "read_table",
    "split_of",
    "text_key",
]
