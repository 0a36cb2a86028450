# What the phases without a GPU run in: prompts, map, report; and all of the demo.
#
# Packages alone: aerie/ runs from the checkout. The wheels were fetched outside, by the machine's own
# pip, so that no address and no password of a package index gets into an image.
ARG BASE
FROM ${BASE} AS build
COPY requirements.txt /build/requirements.txt
COPY wheels /build/wheels
RUN python3 -m venv /venv
RUN /venv/bin/python -m pip install --quiet --no-index --find-links /build/wheels --requirement /build/requirements.txt

FROM ${BASE}
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH
ENV PYTHONDONTWRITEBYTECODE=1
RUN python -c 'import pyarrow, safetensors, snakemake, torch, transformers'
