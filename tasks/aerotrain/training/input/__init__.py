"""The input of a training: from the shards in the store to the batches of a step.

``order`` plans the steps and the order of records: shards are shuffled and cut into shuffle
windows, others in each epoch, of which one is in memory at a time, so that a resumed run reads
nothing before its current window. ``leases`` are the batches that workers read of it, some at a
time. ``shard_cache`` is a thread that downloads ``shards`` in that order, within a disk limit.
``shuffle_windows`` waits for them and reads the records by operations of a graph, also on workers.
``batches`` parses them, and reads files in their order.
"""
