"""The report of a run: what was measured (``metrics.json``) and a page to read (``report.html``)."""
