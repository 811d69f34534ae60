"""A probe of gRPC servers that does not wait as TensorFlow does."""

import socket

#: The start of an HTTP/2 connection, with an empty SETTINGS frame. A running gRPC server answers
#: with its own. Of a stopped process, at most the kernel accepts the connection.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_ANSWER_SECONDS = 1.0


def answers(address: str, seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether the gRPC server at ``host:port`` answers within ``seconds``."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(_GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False
