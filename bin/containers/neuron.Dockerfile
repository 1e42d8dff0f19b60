# syntax=docker/dockerfile:1
# xtrain for AWS Neuron: AWS's image has the runtime, the compiler and the PJRT plugin. TAG is of SDK 2.30 or newer, because xtrain
# needs libneuronxla 3.0; AWS lists tags at https://github.com/aws-neuron/deep-learning-containers#jax-training-neuronx.
#   bin/dist --out dist && docker build -f dist/neuron.Dockerfile --build-arg TAG=... -t xtrain-neuron dist
# `docker run --device /dev/neuron0 xtrain-neuron train clm --device neuron ...`, in SageMaker the hyperparameter device=neuron.
# Never built or run on a Neuron chip (docs/neuron.md).
ARG TAG
FROM public.ecr.aws/neuron/jax-training-neuronx:${TAG}
RUN --mount=type=bind,target=/dist sh /dist/install-xtrain
ENTRYPOINT ["xtrain"]
