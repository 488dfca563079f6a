"""Adversarial robustness of text classifiers: TextAttack's attacks on trained runs, and the vectors they need.

``probattn attack RUN`` and :func:`attack_run` attack the test texts of a finished run; ``probattn attack-vectors`` and
:func:`make_vectors` make counter-fitted word vectors from GloVe. TextAttack comes with the extra ``attack``; it is
imported when an attack begins.
"""

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.attacks.options import AttackOptions, CounterFitting
    from probattn.attacks.records import (
        AttackedText,
        AttackFile,
        AttackResult,
        AttackSummary,
        Share,
        Victim,
        attack_table,
        compared_attacks,
        read_attack,
        summarise,
    )
    from probattn.attacks.running import NetworkVictim, attack_run, attack_texts, fixed_draws
    from probattn.attacks.vectors import Fitted, counter_fit, make_vectors, read_vectors, vectors_file

# Attacks and what is attacked
__all__ = ["AttackOptions", "attack_run", "attack_texts", "Victim", "NetworkVictim", "fixed_draws"]
# Records and figures
__all__ += ["AttackFile", "AttackedText", "AttackResult", "AttackSummary", "Share", "summarise"]
__all__ += ["read_attack", "attack_table", "compared_attacks"]
# Word vectors
__all__ += ["CounterFitting", "Fitted", "counter_fit", "make_vectors", "read_vectors", "vectors_file"]

__getattr__ = imported_when_used(
    __name__, __all__, ("records", "running", "vectors"), options=("AttackOptions", "CounterFitting")
)
