# Builds two images, which share as many stages as possible:
#   docker build --target cpu .     Debian, with Triton from PyPI
#   docker build --target gpu .     NVIDIA's Triton image, with this project's layers on top
# `make image` also adds labels, writes the bill of materials to dist/, and passes this machine's configuration of pip
# to the build (docs/image.md).
#
# A stage copies only the files that it needs, and code comes last, so a change of code rebuilds only the last layer.
ARG BASE_IMAGE=debian:bookworm-slim
# The newest release that serves every model in docs/guides. It is the last one with TensorRT 10, whose trtexec has
# options for fp16 and INT8. Its Python is 3.12, for which requirements/gpu.lock has wheels. docs/image.md says when to
# use another release.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.05-py3

FROM ${BASE_IMAGE} AS cpu-base
COPY scripts/image/packages /opt/steps/
RUN sh /opt/steps/packages python3 libpython3.11 nginx-light && rm -r /opt/steps

# Install build tools and download all wheels here, so that the stages based on this one need no network.
FROM cpu-base AS builder
COPY scripts/image/packages /opt/steps/
RUN sh /opt/steps/packages python3-venv tcc
WORKDIR /opt/program
COPY requirements/build.lock requirements/image.lock requirements/
COPY scripts/image/wheels /opt/steps/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca \
    sh /opt/steps/wheels requirements/build.lock requirements/image.lock
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels PIP_NO_CACHE_DIR=1 PIP_NO_DEPS=1

FROM builder AS tools
RUN python3 -m venv --without-pip .venv && \
    /opt/pip/bin/pip --python .venv/bin/python install --no-compile --require-hashes --requirement requirements/build.lock

FROM tools AS models
COPY build_engines build_engines
RUN --mount=type=bind,source=clients,target=/opt/program/clients \
    --mount=type=bind,source=serving,target=/opt/program/serving \
    --mount=type=bind,source=model_repository,target=/opt/program/model_repository \
    --mount=type=bind,source=backends,target=/opt/program/backends \
    for model in bert efficientnet yolov4_tiny; do \
      .venv/bin/python -m build_engines build $model --precision fp32 --for cpu --out built || exit; done
COPY model_repository built

FROM tools AS backends
COPY serving/__init__.py serving/
COPY serving/host/__init__.py serving/host/tritonserver.py serving/host/
COPY serving/triton/__init__.py serving/triton/quirks.py serving/triton/
COPY backends backends
RUN .venv/bin/python -m backends.install .venv/triton/backends && \
    tcc -shared -fPIC -nostdlib -Wall -Werror -o .venv/triton/stub_wait.so backends/stub_wait.c

FROM builder AS cpu-environment
COPY requirements/serving.lock requirements/
COPY scripts/image/environment /opt/steps/
RUN sh /opt/steps/environment requirements/serving.lock nvidia-pytriton openvino

FROM cpu-environment AS bill-of-materials
RUN /opt/pip/bin/pip install --no-compile --require-hashes --requirement requirements/image.lock
COPY --from=cpu-base /var/lib/dpkg/status /opt/dpkg/status
COPY scripts/image/bill_of_materials.py ./
RUN /opt/pip/bin/python bill_of_materials.py .venv /opt/dpkg sbom.json

FROM scratch AS program
COPY serve wsgi.py predictor.py nginx.conf LICENSE /opt/program/
COPY clients /opt/program/clients
COPY page /opt/program/page
COPY serving /opt/program/serving

FROM cpu-base AS cpu-program
COPY --from=program /opt/program /opt/program
ARG VERSION=unknown
ARG REVISION=unknown
# Writing this file makes buildah notice that the version in the labels has changed.
RUN echo "${VERSION} ${REVISION}" >/opt/program/VERSION && \
    python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/program

FROM cpu-base AS cpu
COPY --from=cpu-environment /opt/program/.venv /opt/program/.venv
COPY --from=models /opt/program/built /opt/program/model_repository
COPY --from=bill-of-materials /opt/program/sbom.json /opt/program/
COPY --from=backends /opt/program/.venv/triton /opt/program/.venv/triton
COPY --from=cpu-program /opt/program /opt/program
ENV PATH=/opt/program:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
WORKDIR /opt/program
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=300s --retries=3 CMD ["/opt/program/serve", "--ping"]
ENTRYPOINT ["/opt/program/serve"]
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      com.amazonaws.sagemaker.capabilities.multi-models=true \
      org.opencontainers.image.title="triton-multi-model" \
      org.opencontainers.image.description="Several models on one SageMaker endpoint, on the processor" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"

FROM ${TRITON_IMAGE} AS gpu-base
COPY scripts/image/packages /opt/steps/
RUN sh /opt/steps/packages nginx-light && rm -r /opt/steps

# NVIDIA's image contains Triton, its C++ backends and their ONNX Runtime, so this project's own are left out.
FROM gpu-base AS gpu-builder
COPY scripts/image/packages /opt/steps/
RUN sh /opt/steps/packages python3-venv
WORKDIR /opt/program
COPY requirements/gpu.lock requirements/
COPY scripts/image/wheels scripts/image/environment /opt/steps/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca \
    sh /opt/steps/wheels requirements/gpu.lock
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels PIP_NO_CACHE_DIR=1 PIP_NO_DEPS=1
RUN sh /opt/steps/environment requirements/gpu.lock

FROM gpu-builder AS gpu-program
COPY --from=program /opt/program /opt/made
ARG VERSION=unknown
ARG REVISION=unknown
RUN echo "${VERSION} ${REVISION}" >/opt/made/VERSION && \
    python3 -m compileall -q -f --invalidation-mode unchecked-hash -s /opt/made -p /opt/program /opt/made

FROM gpu-base AS gpu
COPY --from=gpu-builder /opt/program/.venv /opt/program/.venv
COPY --from=models /opt/program/built /opt/program/model_repository
COPY --from=backends /opt/program/.venv/triton/*.so /opt/program/.venv/triton/
COPY --from=gpu-program /opt/made /opt/program
ENV PATH=/opt/program:${PATH} HOME=/tmp
WORKDIR /opt/program
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=300s --retries=3 CMD ["/opt/program/serve", "--ping"]
# NVIDIA's script makes its version of CUDA work with older drivers. Then it replaces itself with `serve` (exec), so
# `serve` receives the container's signals.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "/opt/program/serve"]
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      com.amazonaws.sagemaker.capabilities.multi-models=true \
      org.opencontainers.image.title="triton-multi-model" \
      org.opencontainers.image.description="Several models on one SageMaker endpoint, on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
