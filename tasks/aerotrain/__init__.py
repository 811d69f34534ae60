"""What runs in a replica of an aerotrain job: the steps, the training loop, the record path.

Nothing here imports Airflow or a Kubernetes client. ``aerotrain.contract`` imports the
standard library alone, so that Airflow can describe a job without TensorFlow.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerotrain.reading import Pipeline


def read(url: str) -> "Pipeline":
    """The pipeline whose store is ``url``, such as ``s3://bucket/digits``, for a notebook.

    For S3, boto3 finds the credential where it usually does. Nothing is changed.

    Raises:
        FinalError: there is no pipeline at the URL.
    """
    from aerotrain.reading import Pipeline  # on use: every replica imports this package

    return Pipeline.at(url)
