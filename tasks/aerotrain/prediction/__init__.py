"""Predictions of an exported model for every record of a source: plan, partitions, finalize."""
