# docker build -t pipetrain . && docker run --rm -v "$PWD:/work" pipetrain --model net.onnx --data train.npz
FROM debian:12 AS build
COPY . /source
WORKDIR /source
RUN bash -c '. scripts/packages.sh && need_packages "${BUILD_PACKAGES[@]}" "${MPI_PACKAGES[@]}" dpkg-dev file' \
    && cmake --preset release -B /build -G Ninja -DPIPETRAIN_TESTS=OFF -DCMAKE_UNITY_BUILD=ON \
    && cmake --build /build --target pipetrain documents && cd /build && cpack -G DEB

FROM debian:12-slim
COPY --from=build /build/*.deb /tmp/
RUN apt-get update && apt-get install --yes --no-install-recommends /tmp/*.deb openmpi-bin && rm -rf /tmp/*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["pipetrain"]
