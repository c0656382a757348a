# vLLM for Gaudi (Ubuntu) with the fixes built in. The base is what the plugin's
# .cd/Dockerfile.ubuntu.pytorch.vllm builds. From the root of a checkout:
#   docker build -f docker/gaudi-ubuntu.Dockerfile -t vllm-fixed-gaudi-ubuntu:v0.26.0 .
# Where the profile has no fixes for the plugin that is installed, the build ends with 1 and says
# so (docs/gaudi.md).
ARG RELEASE=v0.26.0
FROM vllm-gaudi-ubuntu:${RELEASE}
ARG RELEASE
ENV FIXES_PROFILE=${RELEASE}
COPY fixes /opt/vllm-fixes/fixes
COPY profiles /opt/vllm-fixes/profiles
COPY patches /opt/vllm-fixes/patches
RUN python3 /opt/vllm-fixes/fixes/apply_all.py --profile "$FIXES_PROFILE" pipeline-parallel
# In place of the image's own entry point, which makes a script of the environment.
# Found in place, this takes 0.1 s and writes nothing; not in place, no engine starts.
ENTRYPOINT ["sh", "-ec", "python3 /opt/vllm-fixes/fixes/apply_all.py --quiet --profile \"$FIXES_PROFILE\" pipeline-parallel; exec vllm serve \"$@\"", "serve"]
