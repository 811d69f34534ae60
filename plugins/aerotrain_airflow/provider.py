"""What Airflow lists of this package as a provider: ``airflow providers list``, ``config list``.

https://airflow.apache.org/docs/apache-airflow-providers/howto/create-custom-providers.html
"""

from dataclasses import fields
from typing import Any

from aerotrain_airflow.settings import SECTION, Settings


def get_provider_info() -> dict[str, Any]:
    """The description of the provider, as Airflow's ``provider_info.schema.json`` specifies it."""
    options = {}
    for setting in fields(Settings):
        default = setting.metadata["default"]
        options[setting.name] = {
            "description": setting.metadata["description"],
            "version_added": None,
            "type": "boolean" if isinstance(default, bool) else "string",
            "example": None,
            "default": None if callable(default) else str(default),
        }
    return {
        "package-name": "aerotrain",
        "name": "aerotrain",
        "description": "Pipelines that train TensorFlow models as groups of processes or pods.",
        "config": {
            SECTION: {
                "description": "The store and the launcher of all training pipelines.",
                "options": options,
            }
        },
    }
