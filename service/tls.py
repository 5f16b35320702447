"""TLS of both protocols, from the same files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

import grpc


class TlsFiles(NamedTuple):
    """All PEM. With an authority, clients need a certificate that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None

    def check(self) -> None:
        """Raises ValueError for files that do not serve: gRPC itself would say nothing of them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, _no_password)
        except OSError as error:
            raise ValueError(f"{self.cert} with {self.key}: {_reason(error)}") from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ValueError(f"{self.client_ca}: {_reason(error)}") from error

    def uvicorn_options(self) -> dict[str, Any]:
        return {
            "ssl_certfile": self.cert,
            "ssl_keyfile": self.key,
            "ssl_ca_certs": self.client_ca,
            "ssl_cert_reqs": ssl.CERT_NONE if self.client_ca is None else ssl.CERT_REQUIRED,
        }

    def grpc_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.cert.read_bytes())],
            root_certificates=None if self.client_ca is None else self.client_ca.read_bytes(),
            require_client_auth=self.client_ca is not None,
        )


def _no_password() -> str:
    """OpenSSL would ask the terminal, which a server does not have."""
    raise ValueError("the private key has a password, and there is nobody to ask for it")


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
