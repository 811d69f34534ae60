"""The decision whether a model is good enough: metrics by slice, compared with a baseline.

``records`` computes predictions in blocks. ``metrics`` turns a block into states of Keras's metrics
by cell: one of 200 groups of the records of one slice (``slices``). States are sums, so ``sums``
adds them over blocks, and a bootstrap over groups needs no record again (``intervals``). ``gate``
applies rules, ``verdicts`` says of each slice whether it passes, and ``card`` shows it.
"""
