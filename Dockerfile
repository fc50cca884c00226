# SPDX-License-Identifier: Apache-2.0
# docker build -t pysim . && docker run --rm pysim compare resnet50
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir --prefix=/install '/src[onnx,peers,report,sweep]'

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* && useradd --create-home pysim
COPY --from=build /install /usr/local
USER pysim
ENTRYPOINT ["pysim"]
CMD ["doctor"]
