"""Whether a gRPC server is there and alive, found without TensorFlow's waiting for it."""

import socket

#: How an HTTP/2 client begins, with an empty frame of settings. A gRPC server that is alive
#: answers with its own; one that is stopped has at most its kernel take the connection.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_ANSWER_SECONDS = 1.0


def answers(address: str, seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether the gRPC server at ``host:port`` says anything within ``seconds``."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(_GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False
