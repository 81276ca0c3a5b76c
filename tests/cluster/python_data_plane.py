"""Commands and files through the unmodified Python SDK. Usage: python_data_plane.py NAMESPACE POOL API_URL CA, with the tokens of
somebody who may exec and of somebody who may only look in TOKEN and READER_TOKEN, and a client certificate of somebody who may exec
in CERTIFICATE and KEY. Fails with a traceback."""

import io
import os
import random
import sys
import time

from kubernetes import client as kubernetes
from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

namespace, pool, api_url, ca = sys.argv[1:]


def client(token=None, **config):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return SandboxClient(SandboxDirectConnectionConfig(api_url=api_url, ca_cert=ca, extra_headers=headers, **config))


def refused(status, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except SandboxRequestError as error:
        assert error.status_code == status, (status, error.status_code, error)
        return error.response.json()["message"]
    raise AssertionError(f"not refused with {status}")


sdk = client(os.environ["TOKEN"])
sandbox = sdk.create_sandbox(pool, namespace)

result = sandbox.commands.run("echo hello; echo trouble >&2; exit 3")
assert (result.stdout, result.stderr, result.exit_code) == ("hello\n", "trouble\n", 3), result
assert not result.timed_out
begun = time.monotonic()
result = sandbox.commands.run("sleep 60", command_timeout=1)
assert result.timed_out and result.exit_code == 124, result
assert time.monotonic() - begun < 20
print("ok commands")

files = sandbox.files
noise = random.Random(8012).randbytes(5 << 20)
files.write("noise.bin", noise)
assert files.read("noise.bin") == noise
files.write("text.txt", "Grüße\n")
assert files.read("text.txt").decode() == "Grüße\n"
assert sandbox.commands.run("cat text.txt").stdout == "Grüße\n"
spaced = "some where/ein Maß für Käse.txt"
files.write(spaced, io.BytesIO(b"streamed" * 100_000))
copy = io.BytesIO()
assert files.read_to(spaced, copy) == 800_000
assert copy.getvalue() == b"streamed" * 100_000
assert files.exists(spaced) and not files.exists("some where/else")
sandbox.commands.run("mkdir 'some where/below'")
listed = {entry.name: (entry.type, entry.size) for entry in files.list("some where")}
age = time.time() - files.list("some where")[1].modified.timestamp()
assert 0 <= age < 600, age
assert listed == {"ein Maß für Käse.txt": ("file", 800_000), "below": ("directory", 0)}, listed
assert {"noise.bin", "text.txt", "some where"} <= {entry.name for entry in files.list(".")}
assert [entry.name for entry in files.list("/some where")] == [entry.name for entry in files.list("some where")]
refused(404, files.read, "missing")
refused(400, files.read, "a/../../etc/passwd", allow_unsafe_paths=True)
refused(400, files.write, "../escaped", b"x", allow_unsafe_paths=True)
print("ok files")

certified = client(client_cert=(os.environ["CERTIFICATE"], os.environ["KEY"]))
again = certified.get_sandbox(sandbox.claim_name, namespace)
assert again.commands.run("echo certified").stdout == "certified\n"
for token, status in [("nonsense", 401), (None, 401), (os.environ["READER_TOKEN"], 403)]:
    other = client(token).get_sandbox(sandbox.claim_name, namespace)
    refused(status, other.commands.run, "echo no")
    refused(status, other.files.write, "no", b"x")
    refused(status, other.files.exists, "text.txt")
print("ok callers")

objects = kubernetes.CustomObjectsApi()


def operate(mode):
    objects.patch_namespaced_custom_object(
        "agents.x-k8s.io", "v1beta1", namespace, "sandboxes", sandbox.sandbox_id, {"spec": {"operatingMode": mode}}
    )


operate("Suspended")
message = refused(409, sandbox.commands.run, "echo no")
assert "resume it first" in message, message
refused(409, files.read, "text.txt")
operate("Running")
assert files.read("text.txt").decode() == "Grüße\n"
print("ok suspended")

sdk.delete_sandbox(sandbox.claim_name, namespace)
deadline = time.monotonic() + 20
while sdk.list_all_sandboxes(namespace):
    assert time.monotonic() < deadline, "the claim stays"
    time.sleep(0.05)
# The sandbox's own client is closed; another one does not know yet.
refused(404, again.commands.run, "echo no")
refused(404, again.files.list, ".")
print("ok deleted")
