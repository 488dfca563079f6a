"""Fixtures of the driver's tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from probattn.inference.expansion_check import Expansion
from probattn.inference.session import evaluating
from probattn.sites.method import as_program

PROGRAMS = Path(__file__).parent / "programs"
collect_ignore = ["programs"]  # run as scripts, from their own folder


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """``programs/tiny.py``: a model that trains in milliseconds."""
    spec = importlib.util.spec_from_file_location("tiny", PROGRAMS / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def word_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer of a dozen words, one of which has two tokens, for texts and pairs of texts."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [*special, "good", "film", "##s", "bad", "a", "is", "the", "not", ",", "."]
    raw = Tokenizer(WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()
    raw.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture
def reweighted():
    """Predictions at the expectation when weights are multiplied by factors, by site, broadcastable to their maps."""

    def run(net, inputs, factors):
        program = as_program(net)
        logs = {name: factor.log() for name, factor in factors.items()}
        with evaluating(program), Expansion(logs) as expansion:
            logits = program(inputs)
        assert factors.keys() <= expansion.points.keys()
        return logits

    return run
