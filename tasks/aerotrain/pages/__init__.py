"""What the HTML pages of data sets and models are made of.

``html`` has the document, its style, text and tables; ``charts`` are static SVG, with ``axis`` for
histograms. Each page is one file that requests nothing.
"""
