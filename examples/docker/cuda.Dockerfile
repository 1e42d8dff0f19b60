# xtrain for NVIDIA GPUs: jax's PJRT plugin with the libraries that it brings, and the files of bin/dist:
#   bin/dist --out dist && docker build -f examples/docker/cuda.Dockerfile -t xtrain-cuda dist
# Tested only against a stand-in plugin, never on hardware (docs/cuda.md).
FROM nvidia/cuda:13.0.1-base-ubuntu24.04
ADD xtrain-*-linux-x86_64.tar.gz /opt/
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/plugin \
 && /opt/plugin/bin/pip install --no-cache-dir "jax[cuda13]==0.11.2" \
 && ln -s /opt/xtrain-*/ /opt/xtrain && ln -s /opt/xtrain/bin/xtrain /usr/local/bin/xtrain
ENV PATH=/opt/plugin/bin:$PATH VIRTUAL_ENV=/opt/plugin
ENTRYPOINT ["xtrain", "--device", "cuda"]
