# What answers, captures states and serves drafts: SGLang's own image, and what Aerie needs beside it.
#
# SGLang, torch and transformers stay the image's: the venv sees them and adds what they lack. The
# capture plugin is an entry point inside the checkout (aerie/engines/sglang/entry_point), which the
# server finds by PYTHONPATH.
ARG BASE
FROM ${BASE}
COPY requirements.txt /build/requirements.txt
COPY wheels /build/wheels
RUN python3 -m venv --system-site-packages --without-pip /venv
RUN python3 -m pip --python /venv/bin/python install --quiet --no-index --no-deps --find-links /build/wheels --requirement /build/requirements.txt
RUN rm -rf /build
ENV PATH=/venv/bin:$PATH
ENV PYTHONDONTWRITEBYTECODE=1
RUN python -c 'import pyarrow, rensa, sglang, snakemake, torch, transformers, xxhash'
