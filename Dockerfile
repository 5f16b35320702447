# syntax=docker/dockerfile:1
# The server with the default model's weights inside; nothing is downloaded when it starts.
#   docker build -t lln .                               for machines without a GPU
#   docker build -t lln:cuda --build-arg VARIANT=cuda . for NVIDIA GPUs
# docs/operations.md has the other arguments, and how to use an index or certificates of your own.

# 3.11 is the Python the test suite runs on. To pin it by digest: PYTHON_IMAGE=python@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# Over a gigabyte that changes only with the files copied here. Secrets do not end up in the image.
FROM ${PYTHON_IMAGE} AS dependencies
ARG VARIANT=cpu
ARG EXTRAS=tracing
WORKDIR /src
RUN python3 -m venv /opt/lln
COPY pyproject.toml constraints.txt ./
COPY tools/install.py tools/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip \
    --mount=type=secret,id=certificates \
    export PIP_CACHE_DIR=/var/cache/pip PIP_CONFIG_FILE=/run/secrets/pip; \
    if [ -f /run/secrets/certificates ]; then \
        export PIP_CERT=/run/secrets/certificates SSL_CERT_FILE=/run/secrets/certificates; \
    fi; \
    /opt/lln/bin/python tools/install.py dependencies --torch "$VARIANT" --extras "$EXTRAS"

# What is needed to build LLN stays here.
FROM dependencies AS package
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip \
    --mount=type=secret,id=certificates \
    export PIP_CACHE_DIR=/var/cache/pip PIP_CONFIG_FILE=/run/secrets/pip; \
    if [ -f /run/secrets/certificates ]; then export PIP_CERT=/run/secrets/certificates; fi; \
    python3 -m venv /opt/build \
    && /opt/build/bin/python -m pip install -c constraints.txt hatchling
COPY README.md LICENSE ./
COPY kernels kernels
COPY engine engine
COPY service service
COPY lln lln
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --no-index \
    --wheel-dir /wheels .

FROM ${PYTHON_IMAGE}
ARG VARIANT=cpu
# Triton compiles a small launcher in C for each kernel. Debian keeps only the latest version of a
# package, so a pinned one would break the build with every security update.
# hadolint ignore=DL3008
RUN if [ "$VARIANT" = cuda ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --uid 10001 --create-home lln \
    && install --directory --owner lln /home/lln/.cache
COPY --from=dependencies /opt/lln /opt/lln
RUN --mount=type=bind,from=package,source=/wheels,target=/mnt/wheels \
    --mount=type=bind,source=tools/write_sbom.py,target=/mnt/write_sbom.py \
    /opt/lln/bin/python -m pip install --no-cache-dir --no-deps --no-index /mnt/wheels/*.whl \
    && /opt/lln/bin/python /mnt/write_sbom.py /opt/lln/sbom.cdx.json
USER 10001
WORKDIR /home/lln
ENV PATH=/opt/lln/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=/home/lln/.cache/triton \
    LLN_HTTP_HOST=0.0.0.0 \
    LLN_GRPC_HOST=0.0.0.0
EXPOSE 8000 50051
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-m", "service.probe"]
ENTRYPOINT ["lln"]
CMD ["serve"]

ARG PYTHON_IMAGE
ARG REVISION=unknown
LABEL org.opencontainers.image.title="LLN" \
    org.opencontainers.image.description="Embeddings of long documents, and diagnostics of attention" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.base.name="$PYTHON_IMAGE"
