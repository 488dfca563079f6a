"""Topics of a report: what the methods of a network ask to be measured besides predictions.

A topic has a file here that measures it and one in :mod:`probattn.report` with its records and its section. Every task
provides a :class:`TopicData` and stores what :func:`measure_topics` returns. A further topic measures tables and
is registered with :func:`register_topic`.
"""

from probattn.tasks.topics.data import TopicData
from probattn.tasks.topics.registry import TOPICS, measure_topics, register_topic

__all__ = ["TOPICS", "TopicData", "measure_topics", "register_topic"]
