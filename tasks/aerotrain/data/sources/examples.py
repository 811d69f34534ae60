"""The source of TFRecord files of ``tf.train.Example``, read without TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import Damage, FramingError, read_frames
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.first_bytes import check_beginning
from aerotrain.data.sources.naming import file_and_span
from aerotrain.data.sources.protocol import Batch, Rejected, SourceError
from aerotrain.data.sources.whole_files import WholeFiles

_BATCH_RECORDS = 1024
_LISTS = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}


@dataclass(frozen=True)
class ExampleSource(WholeFiles):
    """TFRecord files below a URL, each a fragment. A list of one value is read as a scalar."""

    def schema(self) -> Schema:
        """The schema of the first undamaged record."""
        for file in self.files:
            for _, record in _frames(file):
                if isinstance(record, bytes):
                    features = _parsed(record)
                    return {name: _feature_of(*features[name]) for name in features}
        raise SourceError(f"the source is empty: its {len(self.files)} files have no record")

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, _ = file_and_span(description)
        builder = _BatchBuilder(file.url, schema)
        for offset, record in _frames(file):
            if isinstance(record, Damage):
                builder.reject(offset, record.reason, record.records)
            else:
                builder.add(offset, record)
            if len(builder) == _BATCH_RECORDS:
                yield builder.batch()
                builder = _BatchBuilder(file.url, schema)
        yield builder.batch()


def _frames(file: InputFile) -> Iterator[tuple[int, bytes | Damage]]:
    """The records and the damaged ranges of a file. Raises ``SourceError``."""
    with file.stream() as stream:
        try:
            yield from read_frames(stream)
        except FramingError as error:
            check_beginning(file, "tfrecord")
            raise SourceError(f"{file.url} is not a TFRecord file: {error}") from error


class _BatchBuilder:
    """Collects the records of a batch."""

    def __init__(self, url: str, schema: Schema) -> None:
        self.offsets: list[int] = []
        self._url = url
        self._schema = schema
        self._values: dict[str, list[Any]] = {name: [] for name in schema}
        self._rejected: list[Rejected] = []

    def __len__(self) -> int:
        return len(self.offsets) + len(self._rejected)

    def add(self, offset: int, record: bytes) -> None:
        try:
            features = _parsed(record)
        except message.DecodeError:
            self.reject(offset, "it is not a tf.train.Example")
            return
        for name, feature in self._schema.items():
            found = _feature_of(*features[name]) if name in features else None
            if found != feature:
                self.reject(offset, f"its feature {name!r} is {found or 'missing'}, not {feature}")
                return
        for name in self._schema:
            self._values[name].append(features[name][1])
        self.offsets.append(offset)

    def reject(self, offset: int, reason: str, records: int = 1) -> None:
        self._rejected.append(Rejected(self._url, offset, "byte", reason, records))

    def batch(self) -> Batch:
        return Batch(
            columns={
                name: _column(self._values[name], each) for name, each in self._schema.items()
            },
            file=self._url,
            offsets=np.array(self.offsets, np.int64),
            unit="byte",
            rejected=self._rejected,
        )


def _column(values: list[Sequence[Any]], feature: Feature) -> Any:
    if feature.dtype == "string":
        flat = pa.array([each for value in values for each in value], pa.large_binary())
        if feature.shape == ():
            return flat
        return pa.FixedSizeListArray.from_arrays(flat, feature.shape[0])
    return np.array(values, feature.dtype).reshape(len(values), *feature.shape)


def _feature_of(kind: str, values: Sequence[Any]) -> Feature:
    return Feature(_LISTS[kind], () if len(values) == 1 else (len(values),))


def _parsed(record: bytes) -> dict[str, tuple[str, Sequence[Any]]]:
    """The features of a serialized Example: the kind of each list, and its values."""
    example = _example()()
    example.ParseFromString(record)
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind") or "int64_list"
        features[name] = (kind, getattr(feature, kind).value)
    return features


@cache
def _example() -> Any:
    """The message class of ``tf.train.Example``, built from a descriptor."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="aerotrain/example.proto", package="aerotrain", syntax="proto3"
    )
    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(
            name="value", number=1, type=kind, label=field.LABEL_REPEATED
        )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        feature.field.add(
            name=name,
            number=number,
            type=field.TYPE_MESSAGE,
            type_name=f".aerotrain.{kind}",
            label=field.LABEL_OPTIONAL,
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message_field = {"type": field.TYPE_MESSAGE, "label": field.LABEL_OPTIONAL}
    entry.field.add(name="value", number=2, type_name=".aerotrain.Feature", **message_field)
    features.field.add(
        name="feature",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".aerotrain.Features.FeatureEntry",
        label=field.LABEL_REPEATED,
    )
    file.message_type.add(name="Example").field.add(
        name="features", number=1, type_name=".aerotrain.Features", **message_field
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("aerotrain.Example"))
