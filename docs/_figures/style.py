"""What drawings share: grey that is legible on light and on dark pages, and SVG that comes out the same every time."""

GREY = "#808080"
STYLE = {
    "svg.hashsalt": "probattn",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlesize": "medium",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
