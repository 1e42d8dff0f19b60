# syntax=docker/dockerfile:1
# xtrain for the CPU and for SageMaker, from the files of bin/dist:
#   bin/dist --out dist && docker build -f dist/cpu.Dockerfile -t xtrain dist
# SageMaker starts it with the argument `train`; elsewhere its arguments are xtrain's.
FROM debian:12-slim
RUN --mount=type=bind,target=/dist sh /dist/install-xtrain
ENTRYPOINT ["xtrain"]
