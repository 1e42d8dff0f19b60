# syntax=docker/dockerfile:1
# xtrain for NVIDIA GPUs: `docker run --gpus all xtrain-cuda train clm --device cuda ...`, in SageMaker the hyperparameter device=cuda.
#   bin/dist --out dist && docker build -f dist/cuda.Dockerfile -t xtrain-cuda dist
# The smallest of NVIDIA's runtime images: the CUDA libraries come with jax's plugin, in the versions that it was built for.
# Never built or run on a GPU (docs/cuda.md).
FROM nvidia/cuda:13.0.1-base-ubuntu24.04
RUN --mount=type=bind,target=/dist sh /dist/install-xtrain --cuda
ENV VIRTUAL_ENV=/opt/plugin
ENTRYPOINT ["xtrain"]
