"""Tables and figures of the four papers: the runs that each needs, the papers' numbers, this project's measurements.

``probattn reproduce`` lists the tables; ``probattn reproduce babn/table-5`` trains and measures what a table needs and
compares the result with the paper. Files ``papers/*.yaml`` declare tables: recipes, the keys that rows and columns
change, measures, and the papers' numbers. ``records`` holds this project's measurements, ``claims.yaml`` the papers'
claims with verdicts; ``probattn reproduce claims`` lists them.
"""

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.reproduce.declarations import Axis, Cell, Paper, Table, find_table, papers
    from probattn.reproduce.evidence import Claim, Evidence, claims, claims_sheet
    from probattn.reproduce.options import ReproduceOptions
    from probattn.reproduce.records import CellRecord, TableRecord, measured, read_record
    from probattn.reproduce.running import reproduce
    from probattn.reproduce.sheets import listing, sheet

__all__ = ["Axis", "Cell", "Paper", "Table", "find_table", "papers"]
__all__ += ["Claim", "Evidence", "claims", "claims_sheet"]
__all__ += ["CellRecord", "TableRecord", "measured", "read_record"]
__all__ += ["ReproduceOptions", "listing", "reproduce", "sheet"]

__getattr__ = imported_when_used(
    __name__, __all__, ("declarations", "records", "sheets", "evidence", "running"), ("ReproduceOptions",)
)
