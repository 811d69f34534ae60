"""The chaos tool, ``make chaos``: injects a seeded schedule of faults into live trainings."""
