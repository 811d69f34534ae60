"""The chaos tool: ``make chaos``, a seeded schedule of faults against live trainings."""
