# The sidecar: docker build -f deploy/docker/sidecar.Dockerfile -t sluicegate/sidecar .
# Compose passes them on empty if they are not set; then the defaults below apply.
ARG RUST_IMAGE
ARG DEBIAN_IMAGE

FROM ${RUST_IMAGE:-rust:1.95.0-bookworm} AS build
WORKDIR /src
COPY . .
RUN deploy/docker/compile sidecar

FROM ${DEBIAN_IMAGE:-debian:12.12-slim}
COPY deploy/docker/answers /usr/local/bin/
COPY --from=build /out/sluicegate /usr/local/bin/
USER 65532:65532
EXPOSE 9180 9181
ENTRYPOINT ["sluicegate"]
# Nothing outside a container reaches its loopback, so the sidecar listens on all addresses. Publish 9180 to Envoys only.
CMD ["serve", "--policy", "/etc/sluicegate/policy.yaml", "--listen", "0.0.0.0:9180", "--admin-listen", "0.0.0.0:9181"]
