# syntax=docker/dockerfile:1
# The server with the default model's weights inside; nothing is downloaded when it starts.
#   docker build -t lln .                               for machines without a GPU
#   docker build -t lln:cuda --build-arg VARIANT=cuda . for NVIDIA GPUs
ARG VARIANT=cpu

# 3.11 is the Python the test suite runs on.
FROM python:3.11-slim-bookworm AS build
ARG VARIANT
WORKDIR /src
RUN python -m venv /opt/lln
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tools/install.py tools/
COPY kernels kernels
COPY engine engine
COPY service service
RUN --mount=type=cache,target=/var/cache/pip PIP_CACHE_DIR=/var/cache/pip \
    /opt/lln/bin/python tools/install.py run --torch "$VARIANT" --copy

FROM python:3.11-slim-bookworm
ARG VARIANT
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
COPY --from=build /opt/lln /opt/lln
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
