"""From raw input to a sealed data set, in three steps that each may be run again.

``plan`` lists the parts of the source, ``part`` writes the shards of one of them, ``seal``
writes the manifest when every part is there.
"""
