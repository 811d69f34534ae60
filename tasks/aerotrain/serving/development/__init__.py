"""A server for development alone, with TensorFlow Serving's REST API, of the models in a store.

It has one process, no batching, no metrics and no TLS. TensorFlow Serving is for production.
"""
