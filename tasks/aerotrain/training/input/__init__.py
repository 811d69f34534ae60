"""The input of a training: from the shards in the store to the batches of a step."""
