"""Every kind of mistake in a recipe, and the one line that is said of it."""

import re

import pytest

from probattn.recipes import RecipeError, read_recipe

DATA = "data: {train: rotten_tomatoes}\n"


def said(text: str, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(text, "my.yaml", overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my.yaml: ")
    return message.removeprefix("my.yaml: ")


UNKNOWN = {
    "training:\n  lerning_rate: 1e-4\n": (
        "unknown key 'lerning_rate' in training (line 3); did you mean 'learning_rate'?"
    ),
    "trainign: {}\n": "unknown key 'trainign' (line 2); did you mean 'training'?",
    "batch_size: 3\n": (
        "unknown key 'batch_size' (line 2); did you mean training.batch_size or prediction.batch_size or "
        "probe.batch_size?"
    ),
    "training:\n  rho: 3\n": "unknown key 'rho' in training (line 3); did you mean attention.rho?",
    "prediction: {xyz: 1}\n": (
        "unknown key 'xyz' in prediction (line 2); known are num_samples, chunk_size, batch_size, seed"
    ),
    "training:\n  early_stopping:\n    patince: 2\n": (
        "unknown key 'patince' in training.early_stopping (line 4); did you mean 'patience'?"
    ),
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_key_gets_the_nearest_known_one(text: str) -> None:
    assert said(DATA + text) == UNKNOWN[text]


VALUES = {
    "training: {learning_rate: -1}": "training.learning_rate (line 2): expected a number in (0, 10), got -1",
    "training: {learning_rate: fast}": "training.learning_rate (line 2): expected a number in (0, 10), got 'fast'",
    "training: {learning_rate: true}": "training.learning_rate (line 2): expected a number in (0, 10), got true",
    "training: {learning_rate: null}": "training.learning_rate (line 2): expected a number in (0, 10), got null",
    "training: {weight_decay: .inf}": "training.weight_decay (line 2): expected a number >= 0, finite, got inf",
    "training: {batch_size: 0}": "training.batch_size (line 2): expected a whole number >= 1, got 0",
    "training: {batch_size: 2.5}": "training.batch_size (line 2): expected a whole number >= 1, got 2.5",
    "training: {warmup: 1.5}": "training.warmup (line 2): expected a number in [0, 1], got 1.5",
    "training: {eval_every: 0}": "training.eval_every (line 2): expected a whole number >= 1 or null, got 0",
    "training: {site_learning_rate: no}": (
        "training.site_learning_rate (line 2): expected a number in (0, 10) or null, got 'no'"
    ),
    "training: {precision: fp32}": "training.precision (line 2): expected 'no', 'bf16' or 'fp16', got 'fp32'",
    "training: {seed: 3000000000}": (
        "training.seed (line 2): expected a whole number in [0, 2147483647], got 3000000000"
    ),
    "training: 3": "training (line 2): expected keys and values, got 3",
    "training: {early_stopping: true}": "training.early_stopping (line 2): expected keys and values, got true",
    "training: {epochs: 2, steps: 10}": (
        "training (line 2): expected one of epochs and steps, got epochs 2 and steps 10; set one to null"
    ),
    "training: {optimizer_arguments: {lr: 1}}": (
        "training.optimizer_arguments (line 2): 'lr' has a key of its own: training.learning_rate"
    ),
    "training: {optimizer_arguments: {beta: [0.9, 0.99]}}": (
        "training (line 2): optimizer_arguments: torch.optim.AdamW takes no 'beta'; did you mean 'betas'?"
    ),
    "training: {optimizer_arguments: {eps: small}}": (
        "training.optimizer_arguments (line 2): expected a mapping of names to true or false, a whole number, a number "
        "or a list of numbers, got 'small'"
    ),
    "attention: {method: bann}": (
        "attention.method (line 2): expected 'deterministic', 'babn' or 'bam', got 'bann'"
    ),
    "attention: {layers: []}": (
        "attention.layers (line 2): expected 'all', 'first', 'last' or a list of one or more whole numbers, got []"
    ),
    "attention: {layers: [0, x]}": (
        "attention.layers (line 2): expected 'all', 'first', 'last' or a list of one or more whole numbers, "
        "got [0, 'x']"
    ),
    "attention: {concentration: -2, method: bam}": (
        "attention.concentration (line 2): expected 'learned' or a number > 0, got -2"
    ),
    "attention: {concentration: 3}": (
        "attention (line 2): concentration: expected 'learned' with method 'babn', got 3.0; "
        "a fixed one is method 'bam'"
    ),
    "attention: {method: bam, concentration: learned}": (
        "attention (line 2): concentration: expected a number > 0 with method 'bam', got 'learned'"
    ),
    "attention: {posterior: lognormal, sigma: 1e-6}": (
        "attention (line 2): sigma belongs to the Weibull posterior; with 'lognormal' leave it 0"
    ),
    "report: {thresholds: [0.1, 2]}": (
        "report.thresholds (line 2): expected a list of one or more numbers in (0, 1), got 2"
    ),
    "report: {thresholds: []}": "report.thresholds (line 2): expected a list of one or more numbers in (0, 1), got []",
    "name: ../x": "name (line 2): expected letters, digits, spaces, '.', '-', '_', got '../x'",
    "network: {name: ''}": "network.name (line 2): expected text, not empty, got ''",
    "network: minilm": "network (line 2): expected keys and values, got 'minilm'",
}


@pytest.mark.parametrize("text", VALUES)
def test_a_wrong_value_gets_what_is_allowed(text: str) -> None:
    assert said(f"{DATA}{text}\n") == VALUES[text]


SOURCES = {
    "data:\n  test: my.csv\n": "missing key 'train' in data (line 1)",
    "name: x\n": "missing key 'data'",
    "data:\n": "missing key 'data'",
    "data:\n  train:\n    text: review\n": "missing key 'source' in data.train (line 2)",
    "data:\n  train: roten_tomatoes\n": (
        "data.train (line 2): unknown data set 'roten_tomatoes': expected a file that ends in .csv, "
        ".tsv, .tab, .xlsx, .jsonl, .ndjson, hub:owner/name, or a name (rotten_tomatoes, imdb, bbc_news, sst2, trec, "
        "mrpc, cola, cola_out_of_domain, customer_reviews, sms_spam, qqp, qnli, rte, mnli, mnli_mismatched, snli, "
        "scitail, sick, banking77, clinc150, glue_*, textfooler_*, vader_*); did you mean 'rotten_tomatoes'?"
    ),
    "data:\n  train: {source: my.csv, lable: stars}\n": (
        "unknown key 'lable' in data.train (line 2); did you mean 'label'?"
    ),
    "data:\n  train: {source: my.csv, label_map: {0: 1}}\n": (
        "data.train.label_map (line 2): expected a mapping of names to text, got 1"
    ),
    "data:\n  train: [my.csv]\n": "data.train (line 2): expected keys and values, got ['my.csv']",
}


@pytest.mark.parametrize("text", SOURCES)
def test_data_that_are_not_there(text: str) -> None:
    assert said(text) == SOURCES[text]


def test_several_problems_are_numbered() -> None:
    text = DATA + "training:\n  epohcs: 2\n  batch_size: 0\nreprot: {}\n"
    assert said(text) == (
        "3 problems: (1) training.batch_size (line 4): expected a whole number >= 1, got 0 "
        "(2) unknown key 'epohcs' in training (line 3); did you mean 'epochs'? "
        "(3) unknown key 'reprot' (line 5); did you mean 'report'?"
    )


def test_an_override_is_named_as_the_place() -> None:
    expected = "training.batch_size (override training.batch_size=0): expected a whole number >= 1, got 0"
    assert said(DATA, ("training.batch_size=0",)) == expected
    assert said(DATA, ("training.btach_size=1",)) == (
        "unknown key 'btach_size' in training (override training.btach_size=1); did you mean 'batch_size'?"
    )


def test_long_messages_name_the_first_problems_and_how_many_there_are() -> None:
    keys = "\n".join(f"key_{number}: {'x' * 100}" for number in range(2000))
    with pytest.raises(RecipeError) as caught:
        read_recipe(f"data: {{train: imdb}}\n{keys}")
    message = str(caught.value)
    assert len(message) < 500 and "\n" not in message
    assert message.startswith("recipe: 2000 problems: (1) unknown key 'key_0' (line 2)")
    assert re.search(r" and 19\d\d more$", message)
    assert len(caught.value.problems) == 2000


@pytest.mark.parametrize(
    "text",
    [
        f"name: {'n' * 5000}",
        f"{'k' * 5000}: 1",
        f"data: {{train: {'t' * 5000}.csv, limits: {'l' * 5000}}}",
        f"attention: {{method: {'m' * 5000}}}",
        "training: {seed: " + "9" * 6000 + "}",
    ],
)
def test_values_of_any_length_are_shortened(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_recipe(text, "w" * 3000)
    assert len(str(caught.value)) < 500
