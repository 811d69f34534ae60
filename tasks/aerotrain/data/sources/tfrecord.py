"""The source of TFRecord files of ``tf.train.Example``, read without TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
    text_format,
)

from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records.columns import RecordError, to_pad
from aerotrain.data.records.framing import FramingError, read_frames
from aerotrain.data.sources.batch import Batch, Rejected, SourceError, in_lists
from aerotrain.data.sources.declared import COLUMN_OPTIONS
from aerotrain.data.sources.files import InputFile, checked_beginning
from aerotrain.data.sources.source import FileSource, Inferred, file_and_span

_DTYPES = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}
_TYPES = {"string": pa.large_binary(), "float32": pa.float32(), "int64": pa.int64()}

#: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto and
#: feature.proto, as a descriptor; a SequenceExample has lists of features in addition.
_EXAMPLE = """
name: "aerotrain/example.proto" package: "aerotrain" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".aerotrain.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".aerotrain.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".aerotrain.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type_name: ".aerotrain.Feature" } }
  field { name: "feature" number: 1 label: LABEL_REPEATED
    type_name: ".aerotrain.Features.FeatureEntry" } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: ".aerotrain.Features" }
  field { name: "feature_lists" number: 2 type: TYPE_BYTES } }
"""


class ExampleSource(FileSource):
    """TFRecord files below a URL, each a fragment. A list of one value is read as a scalar."""

    options = COLUMN_OPTIONS | {"pad"}

    def infer(self) -> Inferred:
        """The features of the first record that is an Example."""
        why = ""
        for file in self.files:
            for _, record in _frames(file):
                try:
                    features = features_of(record)
                except RecordError as error:
                    why = why or f" ({error})"
                    continue
                names = self.declared.selected(file.url, list(features))
                return Inferred({name: self._feature_of(name, *features[name]) for name in names})
        raise self.empty("tf.train.Example", why)

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, _ = file_and_span(description)
        # An Example has three types; the cast to the schema follows.
        schema = {name: self._held(name, each) for name, each in schema.items()}
        for frames in in_lists(_frames(file), lambda frame: len(frame[1])):
            kept, rejected = [], []
            for offset, record in frames:
                try:
                    kept.append((offset, self._values(record, schema)))
                except RecordError as error:
                    rejected.append(Rejected(file.url, offset, "byte", str(error)))
            columns = {}
            for name, feature in schema.items():
                values = pa.array([each[name] for _, each in kept], pa.list_(_TYPES[feature.dtype]))
                is_list = feature.shape or name in self.declared.padding
                columns[name] = values if is_list else values.flatten()
            offsets = np.array([offset for offset, _ in kept], np.int64)
            yield Batch(
                columns=columns, file=file.url, offsets=offsets, unit="byte", rejected=rejected
            )

    def _held(self, name: str, feature: Feature) -> Feature:
        is_text = self.declared.parsed_as(name, Feature(feature.dtype)) == pa.string()
        numbers = "float32" if feature.is_float else "int64"
        return Feature("string" if is_text else numbers, feature.shape)

    def _feature_of(self, name: str, kind: str, values: Sequence[Any]) -> Feature:
        if name in self.declared.padding:
            return self.declared.padding[name].feature(Feature(_DTYPES[kind]))
        return Feature(_DTYPES[kind], () if len(values) == 1 else (len(values),))

    def _values(self, record: bytes, schema: Schema) -> dict[str, Sequence[Any] | None]:
        """The values of an Example; None for a padded feature that it does not have.

        Raises:
            RecordError: they do not fit the schema.
        """
        features = features_of(record)
        for name, feature in schema.items():
            kind, values = features.get(name, ("", None))
            if name in self.declared.padding and not values:
                continue  # without a value it has no type
            found = None if values is None else self._feature_of(name, kind, values)
            if found != feature:
                why = f"its feature {name!r} is {found or 'missing'}, not {feature}"
                if found and found.dtype == feature.dtype:
                    why += f"; {to_pad(name, max(len(values or ()), *feature.shape, 1))}"
                raise RecordError(why)
        try:
            self.declared.check_others("it", list(features), schema)
        except SourceError as error:
            raise RecordError(str(error)) from error
        return {name: features[name][1] if name in features else None for name in schema}


def _frames(file: InputFile) -> Iterator[tuple[int, bytes]]:
    """The records of a file. Raises ``SourceError``."""
    with file.stream() as stream:
        try:
            yield from read_frames(stream)
        except FramingError as error:
            checked_beginning(file)
            raise SourceError(f"{file.url} is not a whole TFRecord file: {error}") from error


def features_of(record: bytes) -> dict[str, tuple[str, Sequence[Any]]]:
    """The features of a serialized Example: the kind of each list, and its values.

    Raises:
        RecordError: it is not an Example.
    """
    example = _example()()
    try:
        example.ParseFromString(record)
    except message.DecodeError as error:
        raise RecordError("it is not a tf.train.Example") from error
    if example.feature_lists or not example.features.feature:
        kind = "SequenceExample" if example.feature_lists else "Example without a feature"
        raise RecordError(
            f"it is a tf.train.{kind}, which is not read; write it as a tf.train.Example whose "
            "features are lists, or read it by a source of the kind python"
        )
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind") or "int64_list"
        features[name] = (kind, getattr(feature, kind).value)
    return features


@cache
def _example() -> Any:
    """The message class of ``tf.train.Example``."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("aerotrain.Example"))
