# The default install (no torch, no vLLM): gateway, loopback worker, replay tools.
FROM python:3.11-slim AS build
RUN python -m venv /opt/duplex
WORKDIR /src
# Dependencies first: this layer changes with the lock alone.
COPY requirements.lock .
RUN /opt/duplex/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY api api
COPY duplex duplex
COPY eventstore eventstore
COPY gpu_worker gpu_worker
COPY replay_tools replay_tools
COPY session_core session_core
RUN /opt/duplex/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
COPY --from=build /opt/duplex /opt/duplex
RUN useradd --system --uid 10001 --create-home duplex
USER duplex
WORKDIR /home/duplex
ENV PATH=/opt/duplex/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 8000
ENTRYPOINT ["duplex"]
CMD ["serve", "--host", "0.0.0.0"]
