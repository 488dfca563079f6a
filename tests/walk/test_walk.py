"""Every public method of other libraries that can change a network, on a converted one: same draws, or an error."""

import inspect
from pathlib import Path

import accelerate
import peft
import pytest
import torch
import transformers
import walk
from torch import nn

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
LIBRARIES = (torch, transformers, peft, accelerate)
CLASSES = {
    "torch": nn.Module,
    "transformers": transformers.PreTrainedModel,
    "peft": peft.PeftModel,
    "trainer": transformers.Trainer,
    "accelerator": accelerate.Accelerator,
}
TABLES = {
    "torch": walk.MODULE,
    "transformers": walk.PRETRAINED,
    "peft": walk.PEFT,
    "trainer": walk.TRAINER,
    "accelerator": walk.ACCELERATOR,
    "accelerate": walk.ACCELERATE,
    "attributes": walk.ATTRIBUTES,
}
CASES = [
    pytest.param(
        *(owner, name, outcome, call),
        id=f"{owner}-{name}",
        marks=pytest.mark.slow if (owner, name) == ("torch", "compile") else (),
    )
    for owner, methods in TABLES.items()
    for name, (outcome, call) in methods.items()
]
REFUSED = (RuntimeError, ValueError, TypeError)


@pytest.mark.parametrize("owner", CLASSES)
def test_every_public_method_is_in_a_table(owner):
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines()[1:])
    if any(module.__version__.split("+")[0] != pins[module.__name__] for module in LIBRARIES):
        pytest.skip("the tables are those of the versions in constraints.txt; others have other methods")
    owners = {owner, "torch"} if issubclass(CLASSES[owner], nn.Module) else {owner}
    known = {name for each in owners for name in (*TABLES[each], *walk.HARMLESS[each].split())}
    public = {
        name
        for name in dir(CLASSES[owner])
        if not name.startswith("_") and inspect.isroutine(inspect.getattr_static(CLASSES[owner], name))
    }
    assert sorted(public - known) == []
    assert not {*TABLES[owner]} & {*walk.HARMLESS[owner].split()}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("owner", "name", "outcome", "call"), CASES)
def test_draws_are_the_same_or_an_error_says_why(owner, name, outcome, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if owner in CLASSES and name not in dir(CLASSES[owner]) and name not in walk.FORWARDED:
        pytest.skip(f"{CLASSES[owner].__name__} has no {name} in this version")

    def plain():
        return walk.with_lora(walk.plain()) if owner == "peft" else walk.plain()

    net = walk.converted(plain())
    if outcome == walk.COMMUTES:
        torch.manual_seed(5)
        expected = walk.draws(walk.converted(call(plain(), tmp_path)))
    else:
        expected = walk.draws(net)
    assert expected.std(dim=0).max() > 0.01
    torch.manual_seed(5)
    if outcome in (walk.EQUAL, walk.COMMUTES):
        found = walk.draws(call(net, tmp_path))
        torch.testing.assert_close(found, expected, rtol=0, atol=walk.TOLERANCE.get(name, 1e-5))
    else:
        with pytest.raises(REFUSED, match=outcome):
            walk.draws(call(net, tmp_path))
