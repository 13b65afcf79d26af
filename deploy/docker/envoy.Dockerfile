# Envoy with the filter: docker build -f deploy/docker/envoy.Dockerfile -t sluicegate/envoy .
# With `--target upstream`: an Envoy that answers everything with 200, as an upstream for the first one.
# Compose passes them on empty if they are not set; then the defaults below apply.
ARG RUST_IMAGE
ARG ENVOY_IMAGE

FROM ${ENVOY_IMAGE:-envoyproxy/envoy:v1.40.0} AS base

FROM base AS upstream
COPY deploy/docker/answers /usr/local/bin/
COPY deploy/docker/upstream.yaml /etc/envoy/
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["envoy", "--disable-hot-restart", "--concurrency", "1", "-l", "warning", "-c", "/etc/envoy/upstream.yaml"]

FROM ${RUST_IMAGE:-rust:1.95.0-bookworm} AS build
WORKDIR /src
COPY . .
RUN deploy/docker/compile filter

FROM base AS envoy
COPY deploy/docker/answers deploy/docker/start-envoy /usr/local/bin/
COPY --from=build /out/sluicegate.wasm /usr/share/sluicegate/
USER 65532:65532
EXPOSE 10000 9901
ENTRYPOINT ["start-envoy"]
