"""A DAG that checks an exported version in a server in the replica's pod, and promotes it."""

import os

from airflow.sdk import DAG, Param

from aerotrain_airflow.params import prediction_params
from aerotrain_airflow.steps import promote, serve_check

VERSION = "{{ params.version }}"

with DAG(
    "served",
    schedule=None,
    params={**prediction_params(), "version": Param(None, type=["null", "string"])},
) as served:
    image = os.environ.get("AEROTRAIN_TEST_SERVER_IMAGE")
    serve_check(VERSION, image=image, seconds=2) >> promote(VERSION)
