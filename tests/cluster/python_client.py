"""The Python client of Kubernetes against the server. Usage: python_client.py NAMESPACE

Prints `ok NAME` for each check; fails with a traceback. After the line `restart` it waits for a line on its standard input,
so that the server can be killed and started again under its watch.
"""

import sys
import threading
import time

import urllib3
from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

GROUP, VERSION, PLURAL = "agents.x-k8s.io", "v1beta1", "sandboxes"
PATIENCE = 60

namespace = sys.argv[1]
config.load_kube_config()
api = client.CustomObjectsApi()
place = {"group": GROUP, "version": VERSION, "namespace": namespace, "plural": PLURAL}


def sandbox(name, **metadata):
    container = {"name": "main", "image": "python:3.12"}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Sandbox",
        "metadata": {"name": name, **metadata},
        "spec": {"podTemplate": {"spec": {"containers": [container]}}},
    }


def create(name, **metadata):
    return api.create_namespaced_custom_object(**place, body=sandbox(name, **metadata))


def delete(name, **options):
    return api.delete_namespaced_custom_object(**place, name=name, **options)


def listed(**options):
    return api.list_namespaced_custom_object(**place, **options)


def names(listing):
    return [item["metadata"]["name"] for item in listing["items"]]


def version(listing):
    return listing["metadata"]["resourceVersion"]


def watched(resource_version, timeout_seconds=5):
    """What happens from a version on, until a while after the last call."""
    options = {"resource_version": resource_version, "timeout_seconds": timeout_seconds}
    events = watch.Watch().stream(api.list_namespaced_custom_object, **place, **options)
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def refused(status, call):
    try:
        call()
    except ApiException as refusal:
        assert refusal.status == status, refusal
    else:
        raise AssertionError(f"{call} was not refused with {status}")


def wait_for(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Follower(threading.Thread):
    """Keeps what a list and the watch behind it tell, as programs do that have no informer."""

    def __init__(self):
        super().__init__(daemon=True)
        self.state, self.n_lists = {}, 0
        self.start()

    def run(self):
        while True:
            try:
                listing = listed()
                self.state = {item["metadata"]["name"]: item for item in listing["items"]}
                self.n_lists += 1
                self.follow(version(listing))
            except (ApiException, urllib3.exceptions.HTTPError):
                # Too old, cut off, or not there for a moment: all of it is listed again.
                time.sleep(0.2)

    def follow(self, resource_version):
        options = {"resource_version": resource_version, "allow_watch_bookmarks": True}
        for event in watch.Watch().stream(api.list_namespaced_custom_object, **place, **options):
            kind, item = event["type"], event["object"]
            name = item["metadata"].get("name")
            if kind == "DELETED":
                self.state.pop(name, None)
            elif kind in ("ADDED", "MODIFIED"):
                self.state[name] = item

    def agrees(self):
        items = listed()["items"]
        return self.state == {item["metadata"]["name"]: item for item in items}


created = create("one", labels={"team": "a"})
assert created["metadata"]["uid"], created
refused(409, lambda: create("one"))
refused(422, lambda: create("Not-A-Name"))
for name in ("two", "three"):
    create(name)
page = listed(limit=2)
rest = listed(limit=2, _continue=page["metadata"]["continue"])
assert names(page) + names(rest) == ["one", "three", "two"], (page, rest)
assert names(listed(label_selector="team in (a,b)")) == ["one"]
assert names(listed(field_selector="metadata.name=two")) == ["two"]
print("ok lists", flush=True)

patch = {"metadata": {"annotations": {"note": "merged"}}}
merge = {"_content_type": "application/merge-patch+json"}
patched = api.patch_namespaced_custom_object(**place, name="one", body=patch, **merge)
assert patched["metadata"]["annotations"]["note"] == "merged", patched
operations = [{"op": "replace", "path": "/metadata/labels/team", "value": "b"}]
operated = {"_content_type": "application/json-patch+json"}
patched = api.patch_namespaced_custom_object(**place, name="one", body=operations, **operated)
assert patched["metadata"]["labels"]["team"] == "b", patched
patched["metadata"]["labels"]["team"] = "c"
replaced = api.replace_namespaced_custom_object(**place, name="one", body=patched)
assert replaced["metadata"]["labels"]["team"] == "c", replaced
refused(409, lambda: api.replace_namespaced_custom_object(**place, name="one", body=patched))
refused(404, lambda: api.get_namespaced_custom_object(**place, name="nobody"))
print("ok patches", flush=True)

# Everything that happens behind a version is told, once and in order, however late it is asked for.
start = version(listed())
create("brief")
delete("brief")
middle = version(listed())
delete("three", body=client.V1DeleteOptions(propagation_policy="Background"))
expected = [("ADDED", "brief"), ("DELETED", "brief"), ("DELETED", "three")]
assert watched(start, 2) == expected, watched(start, 2)
assert watched(middle, 2) == expected[2:]
print("ok watches", flush=True)

resources = dynamic.DynamicClient(client.ApiClient()).resources
sandboxes = resources.get(api_version=f"{GROUP}/{VERSION}", kind="Sandbox")
applied = sandboxes.server_side_apply(
    sandbox("applied", labels={"by": "apply"}), namespace=namespace, field_manager="python"
)
assert applied.metadata.labels.by == "apply", applied
assert applied.metadata.managedFields[0].manager == "python", applied
sandboxes.delete(name="applied", namespace=namespace)
print("ok dynamic", flush=True)

follower = Follower()
wait_for("the watch agrees with the list", follower.agrees)
before = version(listed())
uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in listed()["items"]}
print("restart", flush=True)
sys.stdin.readline()
wait_for("the server is back", lambda: names(listed()) == ["one", "two"])
assert {item["metadata"]["name"]: item["metadata"]["uid"] for item in listed()["items"]} == uids
refused(410, lambda: watched(before))
create("after")
delete("two")
wait_for("the watch agrees with the list", follower.agrees)
assert sorted(follower.state) == ["after", "one"], follower.state
assert follower.n_lists >= 2, "the watch was not cut"
for name in ("after", "one"):
    delete(name)
wait_for("all is deleted", lambda: not follower.state)
print("ok restart", flush=True)
