"""What runs in a replica of an aerotrain job: the steps, the training loop, the record path.

Nothing here imports Airflow or a Kubernetes client. ``aerotrain.contract`` imports the
standard library alone, so that Airflow can describe a job without TensorFlow.
"""
