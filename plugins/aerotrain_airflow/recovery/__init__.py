"""What happens when a replica is lost: who comes back, when, and when it is enough.

Nothing here touches the world: ``verdicts`` judges one loss, ``recovery`` decides for a whole
set from what was seen and what its ledger remembers, ``goodput`` adds a ledger up.
"""
