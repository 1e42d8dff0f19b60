# xtrain for the CPU, from the files of bin/dist:
#   bin/dist --out dist && docker build -f examples/docker/cpu.Dockerfile -t xtrain dist
# SageMaker starts it with the argument `train`; elsewhere its arguments are xtrain's.
FROM debian:12-slim
ADD xtrain-*-linux-x86_64.tar.gz /opt/
RUN ln -s /opt/xtrain-*/ /opt/xtrain && ln -s /opt/xtrain/bin/xtrain /usr/local/bin/xtrain
ENTRYPOINT ["xtrain"]
