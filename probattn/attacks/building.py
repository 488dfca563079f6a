"""The attacks, built of TextAttack's classes."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from probattn.attacks.options import AttackName, AttackOptions
from probattn.attacks.records import AttackedText, Outcome, Text, Victim
from probattn.attacks.vectors import read_vectors
from probattn.data.tokens import FEATURES, length_limit
from probattn.models.hosts.pretrained import open_pretrained
from probattn.tasks.classification.recipe import NetworkRecipe
from probattn.tasks.devices import current_device
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.networks import quiet_loading

EXTRA = "pip install 'probattn[attack]'"
INSTALL = f"{EXTRA}, then pip install --no-deps textattack"
PAIR = ("premise", "hypothesis")
WINDOWED: dict[str, Any] = {"window_size": 15, "skip_text_shorter_than_window": True}
"""Words around a change whose meaning is compared, as in TextFooler."""
ANGLE = 0.840845057
"""1 - 0.5 / pi, the angular similarity that TextFooler's program asks for."""
NEIGHBOURS = 50
"""Most words that a word may be exchanged for."""
LOOK_ALIKE = dict(zip("abcdefghijklmnopqrstuvwxyz", "ɑЬϲԁе𝚏ɡհіϳ𝒌ⅼｍոорԛⲅѕ𝚝սѵԝ×уᴢ", strict=True))
BATCH = 32


FUNCTION_WORDS = """
a an the this that these those each every either neither both all some any no none such another other others
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
it its itself they them their theirs themselves one who whom whose which what
someone somebody something somewhere anyone anybody anything anywhere everyone everybody everything everywhere
nobody nothing nowhere whoever whatever whichever wherever whenever however
be am is are was were been being have has had having do does did doing done
can could may might must shall should will would ought cannot
about above across after against along among around as at before behind below beneath beside besides between beyond by
despite down during except for from in inside into like near of off on onto out outside over past per since than
through throughout till to toward towards under until up upon via with within without
and but or nor so yet if unless because although though while whereas whether once lest
when where why how here there then thus hence therefore meanwhile otherwise moreover nevertheless
not only just also too even still already almost again ever quite rather
ain aren arent can't couldn couldn't d didn didn't doesn doesn't don don't hadn hadn't hasn hasn't haven haven't isn
isn't ll m mightn mustn n't needn re s shan shouldn shouldn't t ve wasn wasn't weren weren't won won't wouldn wouldn't
it's he's she's that's there's i'm i've i'd i'll you're you've you'd you'll we're we've we'd we'll they're they've
"""
"""English pronouns, determiners, prepositions, conjunctions, auxiliaries and their like."""


@cache
def load_textattack() -> Any:
    """TextAttack, or ``RunError``; its import changes neither the environment nor NLTK, and does without flair."""
    if importlib.util.find_spec("textattack") is None:
        raise RunError(
            f"attacks: expected the package textattack, which is not installed; install it: {INSTALL}"
        )
    environment = dict(os.environ)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(), _empty_flair(), _nltk_words():
            warnings.simplefilter("ignore")
            textattack = importlib.import_module("textattack")
    except (ImportError, AttributeError, RuntimeError) as error:
        raise RunError(
            f"attacks: textattack cannot be imported ({one_line(error)}); install what it needs: {INSTALL}"
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(environment)
    logging.getLogger("textattack.shared.utils.install").setLevel(logging.ERROR)
    return textattack


@contextlib.contextmanager
def _empty_flair() -> Iterator[None]:
    """Within the block flair has nothing but the names that TextAttack imports, for taggers that are not used here."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "flair"}
    modules = {name: ModuleType(name) for name in ("flair", "flair.data", "flair.models")}
    flair, data, models = modules.values()
    vars(flair).update(data=data, models=models, __path__=[])
    vars(data).update(Sentence=object, Tokenizer=object)
    vars(models).update(SequenceTagger=object)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextlib.contextmanager
def _nltk_words() -> Iterator[None]:
    """Within the block NLTK has a list of English stop words."""
    nltk: Any = importlib.import_module("nltk")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "corpora", "stopwords")
        folder.mkdir(parents=True)
        (folder / "english").write_text("\n".join(sorted(stopwords())), encoding="utf-8")
        nltk.data.path.append(root)  # the last place where it looks
        try:
            yield
        finally:
            nltk.data.path.remove(root)


def build_attack(victim: Victim, options: AttackOptions) -> Attacker:
    """What attacks texts one by one, in at most so many queries each (>= 2); ``RunError`` without a resource."""
    textattack: Any = load_textattack()
    swaps, constraints, importance = _COMPONENTS[options.attack](textattack, options)
    methods, kinds = textattack.search_methods, textattack.transformations

    class Wrapper(textattack.models.wrappers.ModelWrapper):
        """The victim as TextAttack asks it."""

        model = victim

        def __call__(self, text_input_list: Sequence[Text], **_: object) -> Tensor:
            return victim(text_input_list)

    goal = textattack.goal_functions.UntargetedClassification(
        Wrapper(), query_budget=options.queries, model_batch_size=BATCH
    )
    pre = textattack.constraints.pre_transformation
    shared = [
        pre.RepeatModification(),
        pre.StopwordModification(stopwords=_InAnyCase(stopwords())),
        pre.InputColumnModification(list(PAIR), {PAIR[0]}),
    ]
    transformation = swaps[0] if len(swaps) == 1 else kinds.CompositeTransformation(swaps)
    search = methods.GreedyWordSwapWIR(wir_method=importance) if importance else methods.GreedySearch()
    return Attacker(textattack.Attack(goal, [*shared, *constraints], transformation, search), victim)


@dataclass(frozen=True)
class Attacker:
    """An attack of TextAttack on a victim."""

    attack: Any
    victim: Victim

    def __call__(self, text: Text, label: int) -> AttackedText:
        """Attacks a text of a class, an index; random changes are drawn from the global generators."""
        pair = None if isinstance(text, str) else OrderedDict(zip(PAIR, text, strict=True))
        result = self.attack.attack(text if pair is None else pair, label)
        before, after = result.original_result, result.perturbed_result
        words = before.attacked_text.words_per_input[-1]
        original, made = before.attacked_text.tokenizer_input, after.attacked_text.tokenizer_input
        return AttackedText(
            text=original if isinstance(original, str) else original[-1],
            first=None if isinstance(original, str) else original[0],
            label=self.victim.classes[label],
            outcome=self._outcome(type(result).__name__),
            probability=float(before.raw_output[label]),
            attacked=float(after.raw_output[label]),
            predicted=self.victim.classes[int(after.raw_output.argmax())],
            perturbed=made if isinstance(made, str) else made[-1],
            words=len(words),
            changed=int(before.attacked_text.words_diff_num(after.attacked_text)),
            queries=int(result.num_queries),
        )

    def _outcome(self, result: str) -> Outcome:
        if result == "SkippedAttackResult":
            return "skipped"
        if result == "SuccessfulAttackResult":
            return "successful"
        goal = self.attack.goal_function
        return "exhausted" if goal.num_queries >= goal.query_budget else "failed"


def stopwords() -> frozenset[str]:
    """Words that no attack changes: the closed classes of English, whole and as tokenizers cut their contractions."""
    return frozenset(FUNCTION_WORDS.split())


class _InAnyCase(frozenset[str]):
    """Words in lower case, which hold those in capitals."""

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and super().__contains__(word.lower())


_OPEN = {"NN": "NOUN", "VB": "VERB", "MD": "VERB", "JJ": "ADJ", "RB": "ADV"}
"""Universal tags by the beginning of those of the Penn Treebank."""
Components = tuple[list[Any], list[Any], str | None]
"""Transformations, constraints beside those of all attacks, and what orders words by their importance, if anything."""


def _textfooler(textattack: Any, options: AttackOptions) -> Components:
    embedding = _embedding(textattack, options)
    similar = textattack.constraints.semantics.WordEmbeddingDistance(
        embedding=embedding, min_cos_sim=options.similarity
    )
    near = _meaning(textattack, options.encoder, threshold=ANGLE, compare_against_original=False, **WINDOWED)
    swaps = _swaps(textattack, "Embedding", max_candidates=NEIGHBOURS, embedding=embedding)
    return swaps, [similar, *_part_of_speech(textattack, options), *near], "delete"


def _textbugger(textattack: Any, options: AttackOptions) -> Components:
    inner = partial(_swaps, textattack, random_one=True, skip_first_char=True, skip_last_char=True)
    swaps = [
        *inner("RandomCharacterInsertion", letters_to_insert=" "),
        *inner("RandomCharacterDeletion", "NeighboringCharacterSwap"),
        _look_alikes(textattack),
        *_swaps(textattack, "Embedding", max_candidates=5, embedding=_embedding(textattack, options)),
    ]
    return swaps, _meaning(textattack, options.encoder, threshold=0.8), "delete"


def _swaps(textattack: Any, *names: str, **options: Any) -> list[Any]:
    """Changes of words by their names in TextAttack."""
    return [getattr(textattack.transformations, f"WordSwap{name}")(**options) for name in names]


def _look_alikes(textattack: Any) -> Any:
    """TextAttack's own class of this kind reads a file that its package (0.3.11) lacks."""

    class LookAlikes(textattack.transformations.WordSwap):
        """A letter is replaced by another that looks the same."""

        def _get_replacement_words(self, word: str) -> list[str]:
            indices = [index for index, letter in enumerate(word) if letter in LOOK_ALIKE]
            return [
                f"{word[:position]}{LOOK_ALIKE[word[position]]}{word[position + 1 :]}" for position in indices
            ]

    return LookAlikes()


def _bae(textattack: Any, options: AttackOptions) -> Components:
    if options.masked_lm is None:
        raise RunError(
            "--attack bae: expected a masked language model, a folder or a name on the hub, got none; give it with "
            "--masked-lm (one can be trained: probattn train masked_babn, whose folder 'model' is one)"
        )
    with quiet_loading():
        net = open_pretrained(AutoModelForMaskedLM, options.masked_lm)
        tokenizer = open_pretrained(AutoTokenizer, options.masked_lm)
    if tokenizer.mask_token is None:
        raise RunError(f"--masked-lm {options.masked_lm}: expected a tokenizer with a mask, its has none")

    class Masked(textattack.transformations.WordSwapMaskedLM):
        """Texts as long as the longest of a batch, on the network's device."""

        def _encode_text(self, text: list[str]) -> Any:
            encoded = tokenizer(text, padding=True, truncation=True, max_length=limit, return_tensors="pt")
            return {name: encoded[name].to(net.device) for name in FEATURES if name in encoded}

    limit = length_limit(tokenizer, net.config)
    candidates = {"max_candidates": NEIGHBOURS, "min_confidence": 0.0}
    swap = Masked(method="bae", masked_language_model=net, tokenizer=tokenizer, **candidates)
    net.to(current_device())
    measure = {"threshold": 0.936338023, "metric": "cosine", "compare_against_original": True}
    near = _meaning(textattack, options.encoder, **measure, **WINDOWED)
    return [swap], [*_part_of_speech(textattack, options), *near], "delete"


def _deepwordbug(textattack: Any, _: AttackOptions) -> Components:
    kinds = "Substitution", "Deletion", "Insertion"
    names = "NeighboringCharacterSwap", *(f"RandomCharacter{kind}" for kind in kinds)
    return _swaps(textattack, *names), [textattack.constraints.overlap.LevenshteinEditDistance(30)], "unk"


def _pruthi(textattack: Any, _: AttackOptions) -> Components:
    names = "NeighboringCharacterSwap", "RandomCharacterDeletion", "RandomCharacterInsertion", "QWERTY"
    swaps = _swaps(textattack, *names, random_one=False, skip_first_char=True, skip_last_char=True)
    short = textattack.constraints.pre_transformation.MinWordLength(min_length=4)
    return swaps, [short, textattack.constraints.overlap.MaxWordsPerturbed(max_num_words=1)], None


_COMPONENTS: dict[AttackName, Callable[[Any, AttackOptions], Components]] = {
    "textfooler": _textfooler,
    "textbugger": _textbugger,
    "bae": _bae,
    "deepwordbug": _deepwordbug,
    "pruthi": _pruthi,
}


def _embedding(textattack: Any, options: AttackOptions) -> Any:
    words, vectors = read_vectors(None if options.vectors is None else Path(options.vectors))
    indices = {word: index for index, word in enumerate(words)}
    by_index = dict(enumerate(words))
    return textattack.shared.WordEmbedding(vectors.numpy(), indices, by_index, _Neighbours(vectors))


class _Neighbours(dict[int, list[int]]):
    """Rows of the matrix of nearest neighbours, each word itself before them, made as they are asked for."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self._vectors = vectors

    def __missing__(self, row: int) -> list[int]:
        count = min(NEIGHBOURS + 1, len(self._vectors))
        near = (self._vectors @ self._vectors[row]).topk(count).indices.tolist()
        return self.setdefault(row, [row, *(other for other in near if other != row)])


def _part_of_speech(textattack: Any, options: AttackOptions) -> list[Any]:
    """A word is replaced by one of its part of speech; a noun also by a verb, and the other way."""
    grammar: Any = textattack.constraints.grammaticality
    if options.tagger == "none":
        return []
    if options.tagger == "nltk":
        try:
            importlib.import_module("nltk").pos_tag(["a", "word"], tagset="universal")
        except LookupError as error:
            raise RunError(
                "--tagger nltk: expected the data of NLTK's tagger, found none; get them: python -m nltk.downloader "
                "averaged_perceptron_tagger_eng universal_tagset; or use --tagger textblob"
            ) from error
        return [grammar.PartOfSpeech(tagger_type="nltk", tagset="universal", allow_verb_noun_swap=True)]
    tag = _textblob()

    class Tagged(grammar.PartOfSpeech):
        """Tags of TextBlob in place of NLTK's."""

        def _get_pos(self, before_ctx: list[str], word: str, after_ctx: list[str]) -> str:
            return tag((*before_ctx, word, *after_ctx))[len(before_ctx)]

    return [Tagged(tagger_type="textblob", tagset="universal", allow_verb_noun_swap=True)]


def _textblob() -> Callable[[tuple[str, ...]], list[str]]:
    """Tags of words by TextBlob's lexicon and rules, which come with it; universal ones of the open classes."""
    try:
        parser: Any = importlib.import_module("textblob.en").parser
    except ImportError as error:
        raise RunError(
            f"--tagger textblob: expected the package textblob, which is not installed; install it: {EXTRA}; or use "
            "--tagger none"
        ) from error

    @cache
    def tag(words: tuple[str, ...]) -> list[str]:
        return [_OPEN.get(pos[:2], pos) for _, pos in parser.find_tags(list(words))]

    return tag


def _meaning(textattack: Any, encoder: str, **options: Any) -> list[Any]:
    """What is said around a change stays near, as a sentence encoder sees it; by the angle unless told otherwise."""
    if encoder == "none":
        return []
    encode = partial(_encoded, *_encoder(encoder))

    class MeanPooled(textattack.constraints.semantics.sentence_encoders.SentenceEncoder):
        """The mean of a network's last states in place of the Universal Sentence Encoder."""

        def encode(self, sentences: Sequence[str]) -> Tensor:
            different = list(dict.fromkeys(sentences))
            indices = {sentence: index for index, sentence in enumerate(different)}
            return encode(different)[[indices[sentence] for sentence in sentences]]

        def _sim_score(self, starting_text: Any, transformed_text: Any) -> Any:
            return self._score_list(starting_text, [transformed_text])[0]

    return [MeanPooled(**({"metric": "angular"} | options))]


@cache
def _encoder(name: str) -> tuple[Any, Any]:
    folder = NetworkRecipe(name=name).locate()
    with quiet_loading():
        net = open_pretrained(AutoModel, folder)
        return net.to(current_device()).eval(), open_pretrained(AutoTokenizer, folder)


def _encoded(net: Any, tokenizer: Any, sentences: Sequence[str]) -> Tensor:
    means = []
    for start in range(0, len(sentences), 2 * BATCH):
        batch = tokenizer(
            list(sentences[start : start + 2 * BATCH]), padding=True, truncation=True, return_tensors="pt"
        ).to(net.device)
        with torch.no_grad():
            states = net(**batch).last_hidden_state
        real = batch["attention_mask"][..., None].to(states.dtype)
        means.append(((states * real).sum(dim=1) / real.sum(dim=1)).cpu())
    return torch.cat(means)
