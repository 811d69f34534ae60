"""The decision whether a model is good enough: metrics by slice, compared with a baseline.

``records`` computes predictions in blocks. ``metrics`` turns a block into states of Keras's metrics
by cell: one of 200 groups of the records of one slice (``slices``). States are sums, so
``verdicts`` adds them over blocks, a bootstrap over groups needs no record again (``intervals``),
and each rule has a verdict of each slice. ``gate`` judges a model so, also by a ``trivial`` one,
``diagnostics`` gathers what else its predictions show, ``importance`` that of columns, and ``card``
shows all of it; ``evaluate`` is the step.
"""
