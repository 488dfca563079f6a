"""One of two gloo processes: feeds every case its share of the data and saves what the metrics answer."""

import importlib.util
import sys
import warnings
from types import ModuleType

import torch
import torch.distributed as dist


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("metric_cases", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["metric_cases"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def main(conftest: str, rank: int, store: str, output: str) -> None:
    torch.set_num_threads(1)  # the pool of a process that was forked may have no threads
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    cases = load(conftest)
    batches = cases.make_data().batches()
    answers: dict[str, dict[str, object]] = {"shared": {}, "one_sided": {}, "again": {}}
    for case in cases.make_cases():
        metric = case.make()
        for batch in batches[rank::2]:  # shares of different sizes
            metric.update(*case.arguments(batch))
        answers["shared"][case.name] = metric.compute()
        metric.update(*case.arguments(batches[rank]))  # states are unsynced after compute
        answers["again"][case.name] = metric.compute()
        alone = case.make()
        if rank == 0:
            for batch in batches:
                alone.update(*case.arguments(batch))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torchmetrics: compute before update, meant here
            answers["one_sided"][case.name] = alone.compute()
    torch.save({kind: {name: tuple_of(v) for name, v in a.items()} for kind, a in answers.items()}, output)
    dist.destroy_process_group()


def tuple_of(value: object) -> tuple[object, ...]:
    """Plain tuples, which torch.load reads without trusting any class."""
    return tuple(value) if isinstance(value, tuple) else (value,)
