"""The options of the server's connections: who may ask, and how long anything may take."""

from __future__ import annotations

from pydantic import Field

from astrai_cli.config.base import Keyed, Texts, UserPath


class NetworkOptions(Keyed):
    """What the server asks of clients before it answers them."""

    api_key_file: UserPath | None = Field(
        None,
        description="File of the keys that clients may carry, one a line; beside api_key, if that "
        "is given too.",
    )
    cors_origin: Texts = Field(
        (),
        description="Origin whose web pages may use the server, such as https://chat.example.com, "
        "or * for all; may be given several times. Without, only the server's own pages may.",
    )
    root_path: str = Field(
        "",
        description="Path under which a proxy shows the server, such as /llm; requests are taken "
        "with it and without.",
    )
    tls_certfile: UserPath | None = Field(
        None, description="PEM file of the certificate, and its chain; the server speaks HTTPS."
    )
    tls_keyfile: UserPath | None = Field(
        None,
        description="PEM file of the certificate's private key; in tls_certfile when left out.",
    )
    max_connections: int = Field(
        1024,
        ge=1,
        le=65536,
        description="Connections at once; for another one, that which has been idle for longest is "
        "closed, and with none idle it is refused.",
    )
    header_timeout: float = Field(
        20.0,
        gt=0.0,
        le=3600.0,
        description="Seconds in which the headers of a request must be there, all of them.",
    )
    body_timeout: float = Field(
        120.0, gt=0.0, le=3600.0, description="Seconds in which its body must be there."
    )
    keep_alive_timeout: float = Field(
        30.0,
        gt=0.0,
        le=3600.0,
        description="Seconds for which a connection stays open between two requests.",
    )
    send_timeout: float = Field(
        60.0,
        gt=0.0,
        le=3600.0,
        description="Seconds for which a client may read nothing of its answer; then it is cut.",
    )
    access_log: bool = Field(True, description="Write a log line for every request.")
