//! A Sandbox as JSON, written straight from its record. Keys are in alphabetical order, as of a custom
//! resource, but for `replicas` of v1alpha1, which comes first.

use std::{borrow::Cow, io::Write as _, net::IpAddr};

use crate::{
    api::{GROUP, PoolKey, labels},
    fleet::{Phase, Sandbox},
    meta::{ResourceVersion, UnixTime, fnv1a, human_duration, validate_label_value},
    resources::versions::ApiVersion,
};

/// An object of `agents.x-k8s.io`.
pub(super) fn object(
    sandbox: &Sandbox,
    at: ResourceVersion,
    version: ApiVersion,
    out: &mut Vec<u8>,
) {
    extend(out, "{\"apiVersion\":\"");
    extend(out, GROUP);
    out.push(b'/');
    extend(out, version.name());
    extend(out, "\",\"kind\":\"Sandbox\",\"metadata\":");
    metadata(sandbox, at, out);
    extend(out, ",\"spec\":");
    spec(sandbox, version, out);
    extend(out, ",\"status\":");
    status(sandbox, version, out);
    out.push(b'}');
}

/// `metadata`.
pub(super) fn metadata(sandbox: &Sandbox, at: ResourceVersion, out: &mut Vec<u8>) {
    extend(out, "{\"annotations\":{");
    annotations(sandbox, out);
    extend(out, "},\"creationTimestamp\":");
    time(sandbox.created, out);
    if let Some(deleted_at) = sandbox.deleted_at {
        extend(
            out,
            ",\"deletionGracePeriodSeconds\":0,\"deletionTimestamp\":",
        );
        time(deleted_at, out);
    }
    let user = sandbox.user.as_deref();
    let users = user.map_or(&[][..], |user| &user.finalizers);
    // Says what a deleted object still waits for. The namespace controller, too, comes back every few seconds for what a
    // finalizer holds; of what nothing holds it makes an error, and comes back after up to a minute.
    let own = sandbox.awaits_release().then_some(labels::RELEASE);
    let mut finalizers = users.iter().map(|it| it.as_str()).chain(own).peekable();
    if finalizers.peek().is_some() {
        extend(out, ",\"finalizers\":[");
        separated(finalizers, out, string);
        out.push(b']');
    }
    if let Some(user) = user.filter(|user| !user.generate_name.is_empty()) {
        extend(out, ",\"generateName\":");
        string(&user.generate_name, out);
    }
    extend(out, ",\"generation\":");
    extend(out, itoa::Buffer::new().format(generation(sandbox)));
    extend(out, ",\"labels\":{");
    object_labels(sandbox, out);
    out.push(b'}');
    if let Some(user) = user.filter(|user| !user.managed_fields.is_empty()) {
        extend(out, ",\"managedFields\":");
        extend(out, &user.managed_fields);
    }
    extend(out, ",\"name\":");
    string(&sandbox.name, out);
    extend(out, ",\"namespace\":");
    string(&sandbox.namespace, out);
    if let Some(user) = user.filter(|user| !user.owner_references.is_empty()) {
        extend(out, ",\"ownerReferences\":");
        extend(out, &user.owner_references);
    }
    extend(out, ",\"resourceVersion\":\"");
    extend(out, itoa::Buffer::new().format(at.as_u64()));
    extend(out, "\",\"uid\":\"");
    extend(
        out,
        sandbox
            .uid
            .hyphenated()
            .encode_lower(&mut uuid::Uuid::encode_buffer()),
    );
    extend(out, "\"}");
}

/// The cells behind the name: Ready, Reason, Age, and the wide ones.
pub(super) fn cells(sandbox: &Sandbox, now: UnixTime, out: &mut Vec<u8>) {
    let ready = sandbox.ready();
    let pool = sandbox.pool.as_deref();
    let of_pool = |part: fn(&PoolKey) -> &str| pool.map_or("<none>", part);
    let expires = sandbox
        .deadline
        .map_or("<none>".into(), |deadline| match deadline > now {
            true => human_duration(deadline.since(now)),
            false => "<expired>".to_owned(),
        });
    let age = human_duration(now.since(sandbox.created));
    let [cpu, memory] = usage_cells(sandbox);
    let cells = [
        ready.status,
        ready.reason,
        &age,
        sandbox.node.as_str(),
        of_pool(|pool| &pool.template),
        of_pool(|pool| &pool.size),
        of_pool(|pool| &pool.net),
        &cpu,
        &memory,
        &expires,
        sandbox.claim.as_str(),
    ];
    for cell in cells {
        out.push(b',');
        string(cell, out);
    }
}

/// CPUs, and memory used of what there is: nothing where no VM runs, unknown where nobody says.
fn usage_cells(sandbox: &Sandbox) -> [Cow<'static, str>; 2] {
    if !sandbox.has_vm() || sandbox.phase == Phase::Failed {
        return ["<none>".into(), "<none>".into()];
    }
    let told = sandbox.usage.get().filter(|_| !sandbox.node_lost);
    let Some(used) = told else {
        return ["<unknown>".into(), "<unknown>".into()];
    };
    let in_use = used
        .memory_used
        .map_or("<unknown>".into(), |used| format!("{used}Mi"));
    let total = used.memory_total;
    let total = match total % 1_024 {
        0 if total > 0 => format!("{}Gi", total / 1_024),
        _ => format!("{total}Mi"),
    };
    let memory = format!("{in_use}/{total}");
    [used.cpus.to_string().into(), memory.into()]
}

/// The value of a label, the server's own or the user's.
pub(super) fn label<'a>(sandbox: &'a Sandbox, key: &str) -> Option<Cow<'a, str>> {
    if let Some((_, value)) = own_labels(sandbox)
        .into_iter()
        .flatten()
        .find(|(own, _)| *own == key)
    {
        return Some(value.into());
    }
    let user = sandbox.user.as_deref()?;
    user.labels.get(key).map(|value| value.as_str().into())
}

/// Counts the user's changes of the spec, of which a deletion is one.
pub(super) fn generation(sandbox: &Sandbox) -> i64 {
    let user = sandbox.user.as_ref();
    let changes = user.map_or(1, |user| user.generation.max(1));
    changes + i64::from(sandbox.deleted_at.is_some())
}

/// The server's labels in alphabetical order; a value that is no label value is left out.
fn own_labels(sandbox: &Sandbox) -> [Option<(&'static str, &str)>; 3] {
    [
        (labels::CLAIM, sandbox.claim.as_str()),
        (labels::NODE, sandbox.node.as_str()),
        (labels::PHASE, sandbox.phase.as_str()),
    ]
    .map(|(key, value)| validate_label_value(value).is_ok().then_some((key, value)))
}

fn object_labels(sandbox: &Sandbox, out: &mut Vec<u8>) {
    let own = own_labels(sandbox).into_iter().flatten();
    let users = sandbox.user.iter().flat_map(|user| &user.labels);
    pairs(
        own,
        users.map(|(key, value)| (key.as_str(), value.as_str())),
        out,
    );
}

fn annotations(sandbox: &Sandbox, out: &mut Vec<u8>) {
    let deadline = sandbox.deadline.map(UnixTime::rfc3339);
    let address = sandbox.reached_at();
    let own = [
        address.as_deref().map(|address| (labels::ADDRESS, address)),
        Some((labels::CLAIM_ID, sandbox.claim.as_str())),
        deadline
            .as_deref()
            .map(|deadline| (labels::DEADLINE, deadline)),
        sandbox
            .from_checkpoint
            .as_deref()
            .map(|checkpoint| (labels::FROM_CHECKPOINT, checkpoint)),
    ];
    let users = sandbox.user.iter().flat_map(|user| &user.annotations);
    pairs(
        own.into_iter().flatten(),
        users.map(|(key, value)| (key.as_str(), &**value)),
        out,
    );
}

/// Two ordered lists of pairs as the members of one object, in order.
fn pairs<'a>(
    own: impl Iterator<Item = (&'a str, &'a str)>,
    users: impl Iterator<Item = (&'a str, &'a str)>,
    out: &mut Vec<u8>,
) {
    let (mut own, mut users) = (own.peekable(), users.peekable());
    let merged = std::iter::from_fn(|| match (own.peek(), users.peek()) {
        (Some((key, _)), Some((users_key, _))) if users_key < key => users.next(),
        (Some(_), _) => own.next(),
        (None, _) => users.next(),
    });
    separated(merged, out, |(key, value), out| {
        string(key, out);
        out.push(b':');
        string(value, out);
    });
}

fn spec(sandbox: &Sandbox, version: ApiVersion, out: &mut Vec<u8>) {
    let mode = match (version, sandbox.phase.is_suspended()) {
        (ApiVersion::V1beta1, false) => r#"{"operatingMode":"Running""#,
        (ApiVersion::V1beta1, true) => r#"{"operatingMode":"Suspended""#,
        (ApiVersion::V1alpha1, false) => r#"{"replicas":1"#,
        (ApiVersion::V1alpha1, true) => r#"{"replicas":0"#,
    };
    extend(out, mode);
    match sandbox.user.as_deref().filter(|user| !user.spec.is_empty()) {
        // The user's spec is an object whose keys all sort behind `operatingMode`, or behind what v1alpha1 has instead.
        Some(user) => match user.spec.strip_prefix('{').unwrap_or("}") {
            "}" => out.push(b'}'),
            rest => {
                out.push(b',');
                extend(out, rest);
            }
        },
        None => unknown_spec(sandbox.pool.as_deref(), out),
    }
}

/// A spec for a sandbox whose maker sent none: one that would be claimed from the same pool.
fn unknown_spec(pool: Option<&PoolKey>, out: &mut Vec<u8>) {
    extend(out, ",\"podTemplate\":{");
    if let Some(pool) = pool.filter(|pool| pool.net != PoolKey::DEFAULT_NET) {
        extend(out, "\"metadata\":{\"annotations\":{\"");
        extend(out, labels::NET);
        extend(out, "\":");
        string(&pool.net, out);
        extend(out, "}},");
    }
    extend(out, "\"spec\":{\"containers\":[{");
    if let Some(pool) = pool {
        extend(out, "\"image\":");
        string(&pool.template, out);
        out.push(b',');
    }
    extend(
        out,
        "\"name\":\"sandbox\"}]}},\"shutdownPolicy\":\"Delete\"}",
    );
}

fn status(sandbox: &Sandbox, version: ApiVersion, out: &mut Vec<u8>) {
    extend(out, "{\"conditions\":[");
    separated(sandbox.conditions(), out, |condition, out| {
        extend(out, "{\"lastTransitionTime\":");
        time(sandbox.changed, out);
        extend(out, ",\"message\":");
        string(condition.message, out);
        extend(out, ",\"observedGeneration\":");
        extend(out, itoa::Buffer::new().format(generation(sandbox)));
        for (key, value) in [
            ("reason", condition.reason),
            ("status", condition.status),
            ("type", condition.kind),
        ] {
            extend(out, ",\"");
            extend(out, key);
            extend(out, "\":\"");
            extend(out, value);
            out.push(b'"');
        }
        out.push(b'}');
    });
    out.push(b']');
    if version == ApiVersion::V1beta1 {
        extend(out, ",\"nodeName\":");
        string(sandbox.node.as_str(), out);
    }
    if let Some(ip) = sandbox.pod_ip() {
        extend(out, ",\"podIPs\":[\"");
        address(ip, out);
        extend(out, "\"]");
    }
    if version == ApiVersion::V1alpha1 {
        let replicas = u8::from(sandbox.has_vm());
        extend(out, ",\"replicas\":");
        extend(out, itoa::Buffer::new().format(replicas));
    }
    extend(out, ",\"selector\":\"");
    extend(out, labels::NAME_HASH);
    out.push(b'=');
    hexadecimal(fnv1a(sandbox.name.as_bytes()), out);
    extend(out, "\"}");
}

fn separated<T>(
    items: impl Iterator<Item = T>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(T, &mut Vec<u8>),
) {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(item, out);
    }
}

fn time(time: UnixTime, out: &mut Vec<u8>) {
    out.push(b'"');
    extend(out, &time.rfc3339());
    out.push(b'"');
}

/// A JSON string. Names and most values need no escape, which is told faster than escaping tells it.
fn string(text: &str, out: &mut Vec<u8>) {
    // Without an early end, so that it is looked at many bytes at a time.
    let is_plain = text.bytes().fold(true, |plain, byte| {
        plain & (byte >= 0x20) & (byte != b'"') & (byte != b'\\')
    });
    if is_plain {
        out.push(b'"');
        extend(out, text);
        out.push(b'"');
    } else {
        serde_json::to_writer(out, text).expect("a string serializes into memory");
    }
}

fn address(ip: IpAddr, out: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => {
            for (index, octet) in ip.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                extend(out, itoa::Buffer::new().format(octet));
            }
        }
        IpAddr::V6(ip) => write!(out, "{ip}").expect("a vector takes any bytes"),
    }
}

/// Eight digits.
fn hexadecimal(number: u32, out: &mut Vec<u8>) {
    let digit = |place: u32| b"0123456789abcdef"[(number >> (4 * place)) as usize & 0xf];
    out.extend((0..8).rev().map(digit));
}

fn extend(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}
