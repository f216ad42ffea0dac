# syntax=docker/dockerfile:1
# An application in Python, with the client from this repository.
#   docker build -f deploy/worker.Dockerfile -t sidekeeper-worker .

FROM python:3.12-slim-bookworm
# The user is the same as in the sidecar's image, so that it may open the shared socket.
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin sidekeeper \
    && install -d -o sidekeeper -g sidekeeper -m 0750 /run/sidekeeper
COPY clients/python /build/python
RUN pip install --no-cache-dir /build/python
COPY deploy/worker.py /usr/local/lib/sidekeeper/worker.py
USER 10001:10001
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["python", "/usr/local/lib/sidekeeper/worker.py"]
