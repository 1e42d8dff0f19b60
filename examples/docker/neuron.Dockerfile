# xtrain for AWS Neuron: AWS's image has the driver's tools, the compiler and the PJRT plugin.
#   bin/dist --out dist
#   docker build -f examples/docker/neuron.Dockerfile --build-arg BASE=<AWS's image jax-training-neuronx> -t xtrain-neuron dist
# Tested only against a stand-in plugin, never on hardware (docs/neuron.md).
ARG BASE
# hadolint ignore=DL3006
FROM ${BASE}
ADD xtrain-*-linux-x86_64.tar.gz /opt/
RUN ln -s /opt/xtrain-*/ /opt/xtrain && ln -s /opt/xtrain/bin/xtrain /usr/local/bin/xtrain
ENTRYPOINT ["xtrain", "--device", "neuron"]
