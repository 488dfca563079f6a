"""Charts of the report as inline SVG: text stays text, colours come from the page's style sheet."""
