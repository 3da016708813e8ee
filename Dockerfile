# The CUDA host of `make setup-gpu` as an image: Python 3.12, torch 2.11 on CUDA 13, SGLang in its own environment.
# SGLang compiles kernels when it starts, so the image keeps nvcc.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends \
        python3.12 python3.12-venv python3.12-dev make git ninja-build build-essential \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/relax
COPY pyproject.toml Makefile README.md LICENSE ./
COPY constraints constraints
COPY conf conf
COPY relax relax
RUN make setup-gpu
ENV PATH=/opt/relax/.venv/bin:$PATH
ENTRYPOINT ["relax-train"]
