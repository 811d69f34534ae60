"""From the shards in the store to the batches that a step takes."""
