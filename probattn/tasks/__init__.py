"""Tasks: the kinds of recipes, such as classification or translation, and what they have in common.

A task reads the data of a recipe, makes the Pyro program to train, measures trained networks and formats their results
(:class:`View`). :func:`train`, :func:`evaluate` and :func:`report` work for every task. A new task is a subclass of
:class:`Task`, or of :class:`ProgramTask`, which trains one network and its deterministic baseline, in :data:`TASKS`.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from probattn.checks import imported_when_used, missing

if find_spec("jinja2") is None:
    raise missing("probattn.report", "jinja2", "report")

if TYPE_CHECKING:
    from probattn.tasks.answering import Answering, Deciding, Drawing, Limits, limited, required
    from probattn.tasks.classification import Classification
    from probattn.tasks.errors import RunError
    from probattn.tasks.experiments import Experiments
    from probattn.tasks.graph_text import GraphTextTask
    from probattn.tasks.graphs import Graphs
    from probattn.tasks.networks import Network
    from probattn.tasks.pretraining import Pretraining
    from probattn.tasks.programs import Data, ProgramTask
    from probattn.tasks.registry import TASKS, load_network, load_results, load_task, run_task, task_of
    from probattn.tasks.run import evaluate, evaluate_runs, report, train, write_page
    from probattn.tasks.task import Part, Task
    from probattn.tasks.translation import Translation
    from probattn.tasks.view import ResultsView, View
    from probattn.tasks.visual_questions import VisualQuestionTask

__all__ = ["TASKS", "Answering", "Classification", "Data", "Deciding", "Drawing", "Experiments"]
__all__ += ["GraphTextTask", "Graphs", "Limits", "Network", "Part", "Pretraining", "ProgramTask"]
__all__ += ["ResultsView", "RunError", "Task", "Translation", "View", "VisualQuestionTask", "evaluate"]
__all__ += ["evaluate_runs", "limited", "load_network", "load_results", "load_task", "report"]
__all__ += ["required", "run_task", "task_of", "train", "write_page"]

_MODULES = ("errors", "registry", "run", "answering", "programs", "networks", "task", "view")

__getattr__ = imported_when_used(__name__, __all__, _MODULES, options=())
