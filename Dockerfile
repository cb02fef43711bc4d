# docker build -t decomfl-lab . && docker run --rm -v "$PWD/out:/decomfl-lab/out" decomfl-lab paper
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /decomfl-lab
COPY . .
# torch for CPUs first: its usual build brings gigabytes of CUDA.
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c constraints.txt .
ENTRYPOINT ["decomfl"]
CMD ["--help"]
