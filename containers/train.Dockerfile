# What a draft is trained in: the CUDA build of torch, and a compiler for what Triton makes of kernels.
#
# As containers/cpu.Dockerfile is. The driver is the host's: --nv of Apptainer, --gpus of Docker.
ARG BASE
FROM ${BASE} AS build
COPY requirements.txt /build/requirements.txt
COPY wheels /build/wheels
RUN python3 -m venv /venv
RUN /venv/bin/python -m pip install --quiet --no-index --find-links /build/wheels --requirement /build/requirements.txt

FROM ${BASE}
COPY --from=build /venv /venv
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV PATH=/venv/bin:$PATH
ENV PYTHONDONTWRITEBYTECODE=1
RUN python -c 'import snakemake, torch, triton; assert torch.version.cuda, "a build of torch without CUDA"'
