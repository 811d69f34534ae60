"""The fixtures of all tests, by what they are fixtures of."""

pytest_plugins = [
    "airflow_fixtures",
    "training_fixtures",
    "store_fixtures",
    "kubernetes_worlds",
    "imagined_sets",
    "live_sets",
]
